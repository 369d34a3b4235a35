// What a tile is made of, and which tile a call gets. Every row says why.
#pragma once

#include <cstdint>

namespace ortflash::sm90 {

// Shared memory that one block may use (bytes), and the columns of one 128-byte-swizzled panel of 16-bit elements.
constexpr int kSharedMemoryLimit = 232448;
constexpr int kPanel = 64;

// Rows of one warpgroup: the M of wgmma.
constexpr int kWarpgroupRows = 64;

// Variants of a kernel; bits of Tile's FLAGS.
enum Flag : unsigned {
  kNoFlags = 0,
  kAnyTerms = 1,       // softcap, block_mask, and attn_bias and attn_mask in every form
  kBiasTiles = 8,      // instead of kAnyTerms: attn_bias from the copy engine and nothing else
  kMaskTiles = 16,     // ... attn_mask from the copy engine, fill -inf, and nothing else
  kKeyTerms = 32,      // ... attn_bias and attn_mask that all rows share
  kLazy = 2,           // the accumulator is rescaled only where a row's maximum grew by more than 2^8
  kWholeBlocks = 128,  // ... block_mask whose blocks are whole tiles, and nothing else
  kNoTurns = 64,       // warpgroups issue their products as they come, not in turns
  kSumByProduct = 4,   // V gets a column of ones, so that P V sums the rows as well: of weights in halves, without LSE
};

// HEAD        D and E, padded up: 64, 96, 128, 192, 256 or 512
// BLOCK_KV    keys a step
// WARPGROUPS  consumer warpgroups, 64 query rows each, or 64 rows and a part of the values' columns each where a
//             warpgroup's registers don't hold O of a whole row; one more warpgroup loads
template <class Element_, int HEAD_, int BLOCK_KV_, int WARPGROUPS_, unsigned FLAGS>
struct Tile {
  using Element = Element_;
  static constexpr int HEAD = HEAD_;
  static constexpr int BLOCK_KV = BLOCK_KV_;
  static constexpr int WARPGROUPS = WARPGROUPS_;
  static constexpr bool ANY_TERMS = (FLAGS & kAnyTerms) != 0;
  static constexpr bool BIAS_TILES = (FLAGS & (kAnyTerms | kBiasTiles)) != 0;
  static constexpr bool MASK_TILES = (FLAGS & (kAnyTerms | kMaskTiles)) != 0;
  static constexpr bool KEY_TERMS = (FLAGS & (kAnyTerms | kKeyTerms)) != 0;
  static constexpr bool BLOCK_MASK = (FLAGS & (kAnyTerms | kWholeBlocks)) != 0;
  static constexpr bool TERMS = BIAS_TILES || MASK_TILES || KEY_TERMS;
  static constexpr bool SCALED = BIAS_TILES || KEY_TERMS;  // scores are scaled before the softmax, for what is added
  static constexpr bool TURNS = (FLAGS & kNoTurns) == 0;
  static constexpr bool LAZY = (FLAGS & kLazy) != 0;
  static constexpr bool SUM_BY_PRODUCT = (FLAGS & kSumByProduct) != 0;

  static constexpr bool SAME_ROWS = HEAD > 256;  // all warpgroups compute the same scores
  static constexpr int ROW_GROUPS = SAME_ROWS ? 1 : WARPGROUPS;
  static constexpr int V_COLUMNS = SAME_ROWS ? HEAD / WARPGROUPS : HEAD;  // of one warpgroup
  static_assert(!SAME_ROWS || !TERMS, "bias and mask come for each warpgroup's own rows");

  static constexpr int BLOCK_Q = kWarpgroupRows * ROW_GROUPS;
  static constexpr int THREADS = 128 * (WARPGROUPS + 1);
  static constexpr int PANELS = (HEAD + kPanel - 1) / kPanel;
  static constexpr int O_COLUMNS = V_COLUMNS + (SUM_BY_PRODUCT ? 8 : 0);  // of P V
  static_assert(!SUM_BY_PRODUCT || HEAD == kPanel, "the ones are the second panel of every stage of V");

  static constexpr int Q_BYTES = kWarpgroupRows * PANELS * kPanel * 2;  // of one warpgroup
  static constexpr int KV_BYTES = BLOCK_KV * PANELS * kPanel * 2;       // of a stage of K, or of V
  static constexpr int ONES_BYTES = SUM_BY_PRODUCT ? BLOCK_KV * kPanel * 2 : 0;
  // Of one warpgroup.
  static constexpr int BIAS_BYTES = BIAS_TILES ? kWarpgroupRows * BLOCK_KV * 2 : 0;
  static constexpr int MASK_BYTES = MASK_TILES ? kWarpgroupRows * BLOCK_KV : 0;
  static constexpr int BIT_BYTES = ANY_TERMS ? 2 * kWarpgroupRows * BLOCK_KV / 8 : 0;
  static constexpr int TERM_BYTES = WARPGROUPS * (BIAS_BYTES + MASK_BYTES) + (KEY_TERMS ? BLOCK_KV * 4 : 0);

  // Two stages of everything, or fewer of Q and of the terms where that doesn't fit, or more of K and V where it does:
  // in short sequences they come from memory and not from L2. 4 KB stay for barriers and alignment.
  static constexpr int FREE_BYTES = kSharedMemoryLimit - 4096 - WARPGROUPS * BIT_BYTES - ONES_BYTES;
  static constexpr bool fits(int kv_stages, int q_stages, int term_stages) {
    return FREE_BYTES >= 2 * kv_stages * KV_BYTES + q_stages * ROW_GROUPS * Q_BYTES + term_stages * TERM_BYTES;
  }
  static constexpr int TERM_STAGES = fits(2, 1, 2) ? 2 : 1;
  static constexpr int Q_STAGES = fits(2, 2, TERM_STAGES) ? 2 : 1;
  static constexpr int KV_STAGES = fits(4, Q_STAGES, TERM_STAGES) ? 4 : 2;
  static_assert(fits(KV_STAGES, Q_STAGES, TERM_STAGES), "the tile does not fit");
  // Where one slot of key terms is written again and again by ordinary stores, each lane says for itself that it has
  // read them: racecheck takes the word of lane 0 for no other lane.
  static constexpr bool LANES_GIVE_BACK = KEY_TERMS && TERM_STAGES == 1;
  static constexpr int TILE_SLOTS = 2 * Q_STAGES;
  // A tile's rows pass through its slot of Q on their way out where the next tile's Q has another one.
  static constexpr bool STORED_BY_SLOT = Q_STAGES == 2 && !SAME_ROWS;

  // setmaxnreg: the block starts with 168 (384 threads) or 128 (512 threads) registers a thread; with 256 threads
  // everybody has enough.
  static constexpr bool GIVES_REGISTERS = WARPGROUPS > 1;
  static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 3 ? 32 : BLOCK_MASK ? 72 : 40;
  static constexpr int CONSUMER_REGISTERS = WARPGROUPS == 3 ? 160 : BLOCK_MASK ? 216 : 232;
};

// Yes where CONDITION holds, else No: parts that only some tiles have.
template <bool CONDITION, class Yes, class No>
struct Select {
  using Type = Yes;
};
template <class Yes, class No>
struct Select<false, Yes, No> {
  using Type = No;
};

}  // namespace ortflash::sm90

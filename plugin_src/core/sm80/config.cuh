// What a kernel is: its type, its tile, and what it takes. Everything that follows from that at compile time.
#pragma once

#include "math.cuh"
#include "panel.cuh"

namespace ortflash::sm80 {

// Each level leaves out code that its calls can't reach. That code is large, and where it is in the loop the
// instruction cache doesn't hold the loop: with a bias at head 128, 194 TFLOP/s became 234.
enum class Level {
  kBare,   // as kPlain, without softmax_lse: P V sums the rows as well, of the weights as it rounds them
  kPlain,  // rows of Q, K and V in whole aligned 16 bytes, scale > 0; causal, window, key_lengths, sinks, grouped heads
  kTerms,  // and a bias of the query's type or a mask, rows of either aligned to four elements
  kAll,    // everything but dropout
  kDropout,
};

// COLUMNS  value columns of a tile, and the most columns of Q and K unless they are streamed
// LEVEL    what it takes (Level)
// PANEL    columns of a panel; COLUMNS % PANEL == 0
// STREAM_Q true: Q's panels come again with K's for each block, so that any head size fits in shared memory
template <Math MATH_, int COLUMNS_, Level LEVEL_, int BLOCK_Q_, int BLOCK_KV_, int WARPS_, int PANEL_, bool STREAM_Q_,
          bool Q_IN_REGISTERS_, int MIN_BLOCKS_>
struct Config {
  static constexpr Math MATH = MATH_;
  static constexpr int COLUMNS = COLUMNS_, BLOCK_Q = BLOCK_Q_, BLOCK_KV = BLOCK_KV_, WARPS = WARPS_, PANEL = PANEL_;
  static constexpr Level LEVEL = LEVEL_;
  static constexpr bool TERMS = LEVEL >= Level::kTerms, ALL = LEVEL >= Level::kAll;
  static constexpr bool DROPOUT = LEVEL == Level::kDropout;
  static constexpr bool SUM_BY_PRODUCT = LEVEL == Level::kBare;
  // Plain kernels never pack heads, but without the tests for it ptxas (CUDA 13.0) keeps more in registers and spills.
  static constexpr bool MAY_PACK = LEVEL != Level::kTerms;
  static constexpr bool STREAM_Q = STREAM_Q_, Q_IN_REGISTERS = Q_IN_REGISTERS_;
  static constexpr int MIN_BLOCKS = MIN_BLOCKS_;

  static constexpr int THREADS = WARPS * 32;
  static constexpr int WARP_ROWS = BLOCK_Q / WARPS;
  static constexpr int M_TILES = WARP_ROWS / 16;
  static constexpr int N_TILES = BLOCK_KV / 8;
  static constexpr int O_TILES = COLUMNS / 8;
  static constexpr int ACCUMULATORS = O_TILES + SUM_BY_PRODUCT;  // of a row tile: O, and maybe the sums
  static constexpr int ELEMENT_BYTES = kElementBytes<MATH>;      // of Q, K and V as they are copied
  static constexpr int TYPE_BYTES = kTypeBytes<MATH>;            // of output and bias
  static constexpr int PIECES = kPieces<MATH>;
  static constexpr int PANEL_BYTES = PANEL * ELEMENT_BYTES;  // of a row
  static constexpr int STEPS = PANEL_BYTES / 32;
  static constexpr int PANELS = COLUMNS / PANEL;
  static_assert(COLUMNS % PANEL == 0 && BLOCK_Q % (16 * WARPS) == 0 && BLOCK_KV % 16 == 0 && PANEL_BYTES % 32 == 0);
  static_assert(!SUM_BY_PRODUCT || (PANELS == 1 && ELEMENT_BYTES == 2 && PIECES == 1));
  static_assert(!Q_IN_REGISTERS || PANELS == 1, "only one panel of Q is kept in registers");
  static_assert(PIECES == 1 || (!Q_IN_REGISTERS && !STREAM_Q), "Q in pieces stays in shared memory");

  using QueryPanel = Panel<BLOCK_Q, PANEL_BYTES, false>;
  using KeyPanel = Panel<BLOCK_KV, PANEL_BYTES, true>;
  static constexpr int QUERY_SMEM = STREAM_Q ? 0 : PANELS * PIECES * QueryPanel::kBytes;
  static constexpr int SLOT_SMEM = PIECES * KeyPanel::kBytes + (STREAM_Q ? QueryPanel::kBytes : 0);
  static constexpr int SMEM = QUERY_SMEM + 2 * SLOT_SMEM;
};

}  // namespace ortflash::sm80

// The tile of the gradients' kernel, and what lies in shared memory.
//
//   k, v          this thread block's keys and values: there from start to end
//   q, d_output   rows of one step and their statistics: two slots each
//   d_scores      dX^T of a step in halves, for dQ: two slots, so that one barrier a step is enough
//   d_query       dQ of a step in fp32, one slot a warpgroup, on its way to global memory
#pragma once

#include "backward_ptx.cuh"
#include "shared_storage.cuh"

namespace ortflash::sm90 {

// HEAD    D and E, padded up: 64 or 128
// MASKED  takes key_lengths, block_mask, and an attn_mask that all rows of a head share
template <class Element_, int HEAD_, bool MASKED_>
struct BackwardTile {
  using Element = Element_;
  static constexpr bool MASKED = MASKED_;
  static constexpr int HEAD = HEAD_;
  static constexpr int WARPGROUPS = 2;  // that multiply, 64 keys each
  static constexpr int BLOCK_KV = kWarpgroupRows * WARPGROUPS;
  static constexpr int BLOCK_Q = HEAD == 64 ? 128 : 64;  // so that dQ of a step is two times 64 x 64
  static constexpr int PANELS = HEAD / kPanel;
  static constexpr int STAGES = 2;
  static constexpr int THREADS = 128 * (WARPGROUPS + 1);
  static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;

  static constexpr int KV_BYTES = BLOCK_KV * HEAD * 2;
  static constexpr int Q_BYTES = BLOCK_Q * HEAD * 2;
  static constexpr int SCORES_BYTES = BLOCK_Q * BLOCK_KV * 2;
  static constexpr int SUM_FLOATS = 64 * 64;  // of dQ, a warpgroup's part of a step
};

struct StepName {
  int head, tile;  // of queries; tile < 0: there are no more steps
};

template <class Tile>
struct alignas(1024) BackwardStorage {
  // Panels of 64 columns, 128-byte swizzled by the copy engine.
  uint8_t k[Tile::KV_BYTES], v[Tile::KV_BYTES];                                   // [BLOCK_KV][64]
  uint8_t q[Tile::STAGES][Tile::Q_BYTES], d_output[Tile::STAGES][Tile::Q_BYTES];  // [BLOCK_Q][64]
  // Panels of 64 queries, [BLOCK_KV][64], swizzled likewise.
  uint8_t d_scores[2][Tile::SCORES_BYTES];
  float d_query[Tile::WARPGROUPS][Tile::SUM_FLOATS];
  float lse_log2[Tile::STAGES][Tile::BLOCK_Q], delta[Tile::STAGES][Tile::BLOCK_Q];
  // Where MASKED: which step is in a slot of q, and in a warpgroup's slot of d_query. Only the loading warp walks.
  StepName step[Tile::STAGES], d_query_step[Tile::WARPGROUPS];

  Barrier k_full, v_full;
  Barrier step_full[Tile::STAGES];                                    // step, which is emptied with q
  Barrier q_full[Tile::STAGES], q_empty[Tile::STAGES];                // q and lse_log2
  Barrier d_output_full[Tile::STAGES], d_output_empty[Tile::STAGES];  // d_output and delta
  Barrier d_query_full[Tile::WARPGROUPS], d_query_empty[Tile::WARPGROUPS];

  // By one thread, before anybody waits. Lane 0 of each warp that has read (or written) a slot arrives.
  __device__ void init_barriers() {
    k_full.init(1);
    v_full.init(1);
    for (int stage = 0; stage < Tile::STAGES; ++stage) {
      step_full[stage].init(1);
      q_full[stage].init(1);
      d_output_full[stage].init(1);
      q_empty[stage].init(4 * Tile::WARPGROUPS);
      d_output_empty[stage].init(4 * Tile::WARPGROUPS);
    }
    for (int group = 0; group < Tile::WARPGROUPS; ++group) {
      d_query_full[group].init(4);
      d_query_empty[group].init(1);
    }
    fence_barrier_init();
  }
};

// Which keys a thread block computes the gradients of, and the steps it takes: for each query head of the key/value
// head the tiles of queries [first_tile, end_tile), which see one of the keys.
struct KeyTile {
  int key, kv_head, batch;
  int keys;       // that exist: T, or key_lengths[batch]
  int low, high;  // of the batch element, as BackwardParams'
  int first_tile, end_tile;

  template <class Tile>
  static __device__ __forceinline__ KeyTile describe(const BackwardParams& p) {
    // Sections of heads whose queries stay in L2 together. In a section the heads' first keys come first: with a causal
    // mask they have the most queries.
    // With a block mask, the tiles that all rows may see come before everything.
    const int heads = p.batch * (p.num_heads / p.group);
    const int global_tiles = Tile::MASKED ? p.global_tiles : 0, tiles = p.key_tiles - global_tiles;
    int index = blockIdx.x, tile = index / heads, head = index - tile * heads;
    if (tile >= global_tiles) {
      index -= heads * global_tiles;
      const int section = index / (p.section_heads * tiles), first_head = section * p.section_heads;
      const int section_heads = min(p.section_heads, heads - first_head);
      const int in_section = index - first_head * tiles;
      tile = in_section / section_heads;
      head = first_head + in_section - tile * section_heads;
      tile += global_tiles;
    }
    KeyTile t;
    t.key = tile * Tile::BLOCK_KV;
    t.batch = head / (p.num_heads / p.group);
    t.kv_head = head - t.batch * (p.num_heads / p.group);
    t.keys = p.kv_len;
    t.low = p.low;
    t.high = p.high;
    if constexpr (Tile::MASKED) {
      if (p.key_lengths != nullptr) t.keys = min(max(p.key_lengths[t.batch * p.key_lengths_stride], 0), p.kv_len);
      if (p.bottom_right) {
        t.low += t.keys - p.kv_len;
        t.high += t.keys - p.kv_len;
      }
    }
    const int last_key = min(t.key + Tile::BLOCK_KV, t.keys) - 1;
    const int first_row = max(0, t.key - t.high + 1);
    const int end_row = last_key < t.key ? 0 : min(p.q_len, last_key - t.low + 1);
    t.first_tile = first_row / Tile::BLOCK_Q;
    t.end_tile = end_row > first_row ? (end_row + Tile::BLOCK_Q - 1) / Tile::BLOCK_Q : t.first_tile;
    return t;
  }
};

// A walk over all steps.
struct QueryStep : StepName {
  __device__ __forceinline__ QueryStep(const BackwardParams& p, const KeyTile& t)
      : StepName{t.kv_head * p.group, t.first_tile} {}
  __device__ __forceinline__ void take(const StepName& other) {
    head = other.head;
    tile = other.tile;
  }
  __device__ __forceinline__ bool valid(const BackwardParams& p, const KeyTile& t) const {
    return head < (t.kv_head + 1) * p.group && t.first_tile < t.end_tile;
  }
  __device__ __forceinline__ void advance(const KeyTile& t) {
    if (++tile == t.end_tile) {
      tile = t.first_tile;
      ++head;
    }
  }
};

// A walk over the steps that block_mask leaves, by all lanes of a warp: they look at 32 tiles of queries at a time.
template <class Tile>
class SeenStep : public StepName {
 public:
  __device__ __forceinline__ SeenStep(const BackwardParams& p, const KeyTile& t)
      : StepName{t.kv_head * p.group, t.first_tile}, window_(t.first_tile), column_(p.block_mask) {
    if (t.first_tile == t.end_tile) {
      tile = -1;
      return;
    }
    if (column_ != nullptr) {
      const Strides& s = p.block_mask_strides;
      column_ += t.batch * s.batch + head * s.head + (t.key >> p.block_shift) * s.column;
    }
    look(p, t);
    pass_over(p, t);
  }
  __device__ __forceinline__ bool valid() const { return tile >= 0; }
  __device__ __forceinline__ void advance(const BackwardParams& p, const KeyTile& t) {
    seen_ &= seen_ - 1;
    pass_over(p, t);
  }

 private:
  // To the next tile that is left.
  __device__ __forceinline__ void pass_over(const BackwardParams& p, const KeyTile& t) {
    while (seen_ == 0) {
      window_ += 32;
      if (window_ >= t.end_tile) {
        window_ = t.first_tile;
        if (++head == (t.kv_head + 1) * p.group) {
          tile = -1;
          return;
        }
        if (column_ != nullptr) column_ += p.block_mask_strides.head;
      }
      look(p, t);
    }
    tile = window_ + __ffs(static_cast<int>(seen_)) - 1;
  }
  __device__ __forceinline__ void look(const BackwardParams& p, const KeyTile& t) {
    const int own = window_ + static_cast<int>(threadIdx.x) % 32;
    seen_ = __ballot_sync(
        ~0u, own < t.end_tile && (column_ == nullptr ||
                                  column_[(own * Tile::BLOCK_Q >> p.block_shift) * p.block_mask_strides.row] != 0));
  }

  int window_;             // the first of the 32 tiles that were looked at last
  uint32_t seen_;          // bit i: window_ + i takes part, and hasn't been visited yet
  const uint8_t* column_;  // of block_mask: for these keys, and the queries of this head; or null
};

}  // namespace ortflash::sm90

// What happens to a block of scores between Q K^T and the softmax:
//
//   s = cap tanh(scale s / cap), or scale s     s += bias     s = mask ? s : fill     s = -inf outside the limits
//
// Registers as in online_softmax.cuh: s[4 j + 2 row + {0, 1}] are columns 8 j + 2 (lane % 4) + {0, 1}.
#pragma once

#include "block_walk.cuh"
#include "online_softmax.cuh"
#include "shared_storage.cuh"
#include "term_sources.cuh"

namespace ortflash::sm90 {

// ------------------------------------------------------------------------- causal, window, key lengths, the end
// Row i keeps keys [max(0, i + diagonal_low), min(keys, i + diagonal_high)).
// The end of the blocks of which some row of a warpgroup sees some key.
template <int BLOCK_KV>
__device__ __forceinline__ int end_of_blocks(const QueryTile& tile, int warpgroup_row, int q_len) {
  if (warpgroup_row >= q_len) return 0;
  const int last_row = min(warpgroup_row + kWarpgroupRows, q_len) - 1;
  return (max(min(tile.keys, last_row + tile.diagonal_high), 0) + BLOCK_KV - 1) / BLOCK_KV;
}

struct BlockRange {
  int first, end;

  // Blocks of which every row of a warpgroup sees every key.
  template <int BLOCK_KV>
  static __device__ __forceinline__ BlockRange clear(const QueryTile& tile, int warpgroup_row) {
    const int end = min(tile.keys, warpgroup_row + tile.diagonal_high);
    const int begin = warpgroup_row + kWarpgroupRows - 1 + tile.diagonal_low;
    return {(max(begin, 0) + BLOCK_KV - 1) / BLOCK_KV, max(end, 0) / BLOCK_KV};
  }

  __device__ __forceinline__ bool contains(int block) const { return block >= first && block < end; }
};

template <int COUNT>
__device__ __forceinline__ void exclude_outside(float (&s)[COUNT], const QueryTile& tile, int warpgroup_row,
                                                int block_column) {
  const int thread = opaque(threadIdx.x % 128);
  const int first_column = block_column + thread % 4 * 2;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int q_row = warpgroup_row + thread / 32 * 16 + thread % 32 / 4 + 8 * row;
    const int high = min(tile.keys, q_row + tile.diagonal_high) - first_column;
#pragma unroll
    for (int i = 2 * row; i < COUNT; i += 4) {
      const int column = 2 * (i - 2 * row);
      if (column >= high) s[i] = -INFINITY;
      if (column + 1 >= high) s[i + 1] = -INFINITY;
    }
  }
  if (warpgroup_row + kWarpgroupRows - 1 + tile.diagonal_low <= block_column) return;  // no window begins in here
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int q_row = warpgroup_row + thread / 32 * 16 + thread % 32 / 4 + 8 * row;
    const int low = q_row + tile.diagonal_low - first_column;
#pragma unroll
    for (int i = 2 * row; i < COUNT; i += 4) {
      const int column = 2 * (i - 2 * row);
      if (column < low) s[i] = -INFINITY;
      if (column + 1 < low) s[i + 1] = -INFINITY;
    }
  }
}

// ------------------------------------------------------------------------------------------------- the terms
// tanh(x) = 1 - 2 / (1 + e^2x), and its series near 0, where that cancels. Off by 5e-7 of itself at most; tanh.approx
// is off by 5e-4, which a cap of 50 would make 2 % of a weight.
__device__ __forceinline__ float tanh_accurate(float x) {
  const float far = 1.0f - __fdividef(2.0f, 1.0f + exp2_approx(x * (2.0f * kLog2E)));
  const float square = x * x;
  float series = fmaf(62.0f / 2835.0f, square, -17.0f / 315.0f);
  series = fmaf(series, square, 2.0f / 15.0f);
  series = fmaf(series, square, -1.0f / 3.0f);
  return fabsf(x) < 0.25f ? fmaf(x * square, series, x) : far;
}

// The state of softcap, attn_bias, attn_mask and block_mask for one warpgroup.
//
// stage() brings what the copy engine can't into shared memory while Q K^T runs: each warp fetches its own 16 rows,
// coalesced. apply() then changes the scores; `number` counts the blocks, as in the rings.
template <class Tile>
class ScoreTerms {
 public:
  static constexpr int COUNT = Tile::BLOCK_KV / 2;  // scores a lane
  static constexpr int WORDS = Tile::BLOCK_KV / 32;

  __device__ __forceinline__ ScoreTerms(const ForwardParams& p, SharedStorage<Tile>& shared, int group)
      : p_(p), shared_(shared), tiles_(shared.terms), sources_(p), group_(group) {}

  __device__ __forceinline__ void stage(const QueryTile& tile, const KvStep& step, int warpgroup_row) {
    thread_ = opaque(threadIdx.x % 128);
    const int row = warpgroup_row + warp() * 16;
    const int column = step.block * Tile::BLOCK_KV;
    __syncwarp();  // everybody has read the last one
    if (sources_.bias_elements()) stage_bias(tile, row, column);
    if (sources_.mask_elements()) stage_mask(tile, row, column);
    if (step.patchwork) stage_block_mask(tile, row, column);
    __syncwarp();
  }

  __device__ __forceinline__ void apply(float (&s)[COUNT], const KvStep& step, int number) {
    thread_ = opaque(threadIdx.x % 128);
    const int stage = slot_of<Tile::TERM_STAGES>(number);
    float multiplier = p_.scale;  // what is left to scale
    if (Tile::ANY_TERMS && p_.softcap > 0.0f) {
      const float inner = p_.scale / p_.softcap;
#pragma unroll
      for (int i = 0; i < COUNT; ++i) s[i] = p_.softcap * tanh_accurate(s[i] * inner);
      multiplier = 1.0f;
    }
    if (sources_.streamed()) shared_.term_full[stage][group_].wait(parity_of<Tile::TERM_STAGES>(number));

    if (sources_.bias_tiles() || sources_.bias_elements()) {
      add_bias_tile(s, multiplier, sources_.bias_tiles() ? stage : 0);
      multiplier = 1.0f;
    }
    if (sources_.keys()) {
      add_keys(s, multiplier, stage);
    } else if (Tile::ANY_TERMS && multiplier != 1.0f) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) s[i] *= multiplier;
    }

    if (sources_.mask_tiles()) {
      apply_mask_tile(s, Tile::ANY_TERMS ? p_.mask_fill : -INFINITY, stage);
    } else if (sources_.mask_elements()) {
      apply_bits(s, tiles_.mask_bits[group_][lane_row()], tiles_.mask_bits[group_][lane_row() + 8], p_.mask_fill);
    }
    if (Tile::ANY_TERMS && step.patchwork) {
      apply_bits(s, tiles_.block_bits[group_][lane_row()], tiles_.block_bits[group_][lane_row() + 8], -INFINITY);
    }
    give_back(stage);
  }

  // For a block that the warpgroup sits out.
  __device__ __forceinline__ void skip(int number) {
    const int stage = slot_of<Tile::TERM_STAGES>(number);
    if (sources_.streamed()) shared_.term_full[stage][group_].wait(parity_of<Tile::TERM_STAGES>(number));
    give_back(stage);
  }

 private:
  using Element = typename Tile::Element;

  __device__ __forceinline__ void give_back(int stage) {
    if (!sources_.streamed()) return;
    if constexpr (!Tile::LANES_GIVE_BACK) __syncwarp();
    if (Tile::LANES_GIVE_BACK || threadIdx.x % 32 == 0) shared_.term_empty[stage][group_].arrive();
  }

  __device__ __forceinline__ int lane() const { return thread_ % 32; }
  __device__ __forceinline__ int warp() const { return thread_ / 32; }
  __device__ __forceinline__ int lane_row() const { return warp() * 16 + lane() / 4; }  // of the warpgroup's 64

  // -------------------------------------------------------------------------------- global -> shared memory
  // 16 rows of 16-bit elements, to where the copy engine would put them.
  __device__ __forceinline__ void stage_bias(const QueryTile& tile, int row, int column) {
    const Element* from = term_data<Element>(p_.bias, tile) + row * p_.bias.row;
    uint8_t* to = tiles_.bias[0][group_];
#pragma unroll 2
    for (int r = 0; r < 16; ++r) {
#pragma unroll
      for (int i = lane(); i < Tile::BLOCK_KV; i += 32) {
        const bool inside = row + r < p_.q_len && column + i < p_.kv_len;
        const Element value = inside ? from[r * p_.bias.row + int64_t{column + i} * p_.bias.column] : Element(0.0f);
        const int chunk = i % kPanel / 8 ^ r % 8;
        *reinterpret_cast<Element*>(to + i / kPanel * kWarpgroupRows * kPanel * 2 + (warp() * 16 + r) * kPanel * 2 +
                                    chunk * 16 + i % 8 * 2) = value;
      }
    }
  }

  __device__ __forceinline__ void stage_mask(const QueryTile& tile, int row, int column) {
    const uint8_t* from = term_data<uint8_t>(p_.mask, tile) + row * p_.mask.row;
#pragma unroll 2
    for (int r = 0; r < 16; ++r) {
#pragma unroll
      for (int word = 0; word < WORDS; ++word) {
        const int j = column + word * 32 + lane();
        const bool inside = row + r < p_.q_len && j < p_.kv_len;
        const bool keep = inside && from[r * p_.mask.row + int64_t{j} * p_.mask.column] != 0;
        const uint32_t bits = __ballot_sync(~0u, keep);
        if (lane() == word) tiles_.mask_bits[group_][warp() * 16 + r][word] = bits;
      }
    }
  }

  // Sizes are 16 or more, so 16 columns share an entry.
  __device__ __forceinline__ void stage_block_mask(const QueryTile& tile, int row, int column) {
    const int r = lane() % 16;
    const uint8_t* from = p_.block_mask + tile.batch * p_.block_mask_batch + tile.head * p_.block_mask_head +
                          ((row + r) >> p_.block_shift) * p_.block_mask_row;
#pragma unroll 1
    for (int word = lane() / 16; word < WORDS; word += 2) {
      uint32_t bits = 0;
      for (int half = 0; half < 2; ++half) {
        const int j = column + word * 32 + half * 16;
        const bool inside = row + r < p_.q_len && j < p_.kv_len;
        if (inside && from[(j >> p_.block_shift) * p_.block_mask_column] != 0) bits |= 0xFFFFu << half * 16;
      }
      tiles_.block_bits[group_][warp() * 16 + r][word] = bits;
    }
  }

  // ----------------------------------------------------------------------------------- shared memory -> scores
  __device__ __forceinline__ void add_keys(float (&s)[COUNT], float multiplier, int stage) const {
    const float* keys = tiles_.keys[stage] + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
      const float2 two = *reinterpret_cast<const float2*>(keys + i * 2);
      s[i] = fmaf(s[i], multiplier, two.x);
      s[i + 1] = fmaf(s[i + 1], multiplier, two.y);
      s[i + 2] = fmaf(s[i + 2], multiplier, two.x);
      s[i + 3] = fmaf(s[i + 3], multiplier, two.y);
    }
  }

  __device__ __forceinline__ void add_bias_tile(float (&s)[COUNT], float multiplier, int stage) const {
    const int row = warp() * 16 + lane() % 16;
    const uint32_t row_address = smem_address(tiles_.bias[stage][group_]) + row * kPanel * 2;
#pragma unroll
    for (int i = 0; i < COUNT; i += 8) {  // 16 columns: two 16-byte chunks
      const int panel = i / 32, chunk = i / 4 % 8;
      uint32_t two[4];
      load_matrices(two,
                    row_address + panel * kWarpgroupRows * kPanel * 2 + (((chunk + lane() / 16) ^ (row % 8)) << 4));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 bias = unpack<Element>(two[k]);
        s[i + 2 * k] = fmaf(s[i + 2 * k], multiplier, bias.x);
        s[i + 2 * k + 1] = fmaf(s[i + 2 * k + 1], multiplier, bias.y);
      }
    }
  }

  // Where a bit is clear the score becomes `fill`.
  __device__ __forceinline__ void apply_bits(float (&s)[COUNT], const uint32_t (&upper)[WORDS],
                                             const uint32_t (&lower)[WORDS], float fill) const {
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
      const uint32_t bits = (i & 2 ? lower : upper)[i / 16] >> lane() % 4 * 2;
      if ((bits >> i % 16 / 4 * 8 & 1) == 0) s[i] = fill;
      if ((bits >> i % 16 / 4 * 8 & 2) == 0) s[i + 1] = fill;
    }
  }

  // [64 rows][BLOCK_KV] bytes, swizzled by the copy engine over its row of 64 or 128 bytes.
  __device__ __forceinline__ void apply_mask_tile(float (&s)[COUNT], float fill, int stage) const {
    constexpr int ROW_BYTES = Tile::BLOCK_KV;
    static_assert(ROW_BYTES == 64 || ROW_BYTES == 128, "a row of the mask is one swizzle row");
    const uint8_t* tile = tiles_.mask[stage][group_];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int offset = (lane_row() + 8 * row) * ROW_BYTES;
      const int swizzle = offset >> 3 & (ROW_BYTES - 16);
#pragma unroll
      for (int i = 2 * row; i < COUNT; i += 4) {
        const int column = i / 4 * 8;
        const uint32_t two = *reinterpret_cast<const uint16_t*>(tile + offset + ((column & ~15) ^ swizzle) +
                                                                (column & 15) + lane() % 4 * 2);
        if ((two & 0xFF) == 0) s[i] = fill;
        if (two < 0x100) s[i + 1] = fill;
      }
    }
  }

  const ForwardParams& p_;
  SharedStorage<Tile>& shared_;
  TermTiles<Tile>& tiles_;
  const TermSources<Tile> sources_;
  const int group_;
  int thread_ = 0;  // of the warpgroup, opaque
};

// In kernels without terms.
template <class Tile>
struct NoScoreTerms {
  __device__ __forceinline__ NoScoreTerms(const ForwardParams&, SharedStorage<Tile>&, int) {}
};

}  // namespace ortflash::sm90

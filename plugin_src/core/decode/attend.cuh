// What one warp does with its share of a segment: 16 keys at a time, from a ring of stages that it alone fills and
// empties, so that no warp ever waits for another one.
//
//   for every WARPS-th 16 keys of the segment:
//     S = softcap(scale Q K^T) + bias, masked      P, m, sum, O = online softmax      O = O + P V
#pragma once

#include <cstdint>
#include <type_traits>

#include "../online_softmax.cuh"
#include "../sm80/products.cuh"
#include "../sm80/scores.cuh"
#include "config.cuh"
#include "copy_rows.cuh"
#include "key_slices.cuh"
#include "rows.cuh"
#include "score_terms.cuh"

namespace ortflash::decode {

// O without the division, and the running softmax of the lane's rows (sm80::lane_row).
template <class C>
struct WarpResult {
  float o[C::M_TILES][C::O_TILES][4] = {};
  OnlineSoftmax softmax[2 * C::M_TILES];
};

// Two adjacent elements of a row of Q; 0 for rows and columns that aren't there.
__device__ __forceinline__ uint32_t load_query_pair(const KernelParams& p, const Rows& rows, const uint16_t* query,
                                                    int row, int column) {
  const int size = row < rows.count ? p.head_size : 0;
  const uint16_t* from = query + rows.element(p.query_strides, row) + column;
  if (p.query_copy >= 4 && column + 1 < size) return *reinterpret_cast<const uint32_t*>(from);
  const uint32_t low = column < size ? from[0] : 0u, high = column + 1 < size ? from[1] : 0u;
  return low | high << 16;
}

// Q as mma's A operands (sm80/products.cuh), held by each warp for itself.
template <class C>
struct QueryRegisters {
  uint32_t words[C::STEPS][4];

  __device__ __forceinline__ QueryRegisters(const KernelParams& p, const Rows& rows, const uint16_t* query,
                                            const uint8_t*) {
#pragma unroll
    for (int i = 0; i < 4 * C::STEPS; ++i) {
      words[i / 4][i % 4] =
          load_query_pair(p, rows, query, threadIdx.x / 4 + i % 2 * 8, i / 2 * 8 + threadIdx.x % 4 * 2);
    }
  }
  __device__ __forceinline__ void operator()(int, int step, uint32_t (&raw)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) raw[i] = words[step][i];
  }
};

// Q in shared memory. All warps of the thread block make it together.
template <class C>
struct QueryShared {
  using P = typename C::QueryPanel;
  uint32_t lane_address;

  __device__ __forceinline__ QueryShared(const KernelParams& p, const Rows& rows, const uint16_t* query,
                                         const uint8_t* smem) {
    const uint32_t panel = sm80::smem_address(smem);
    for (int i = threadIdx.y * 32 + threadIdx.x; i < C::ROWS * C::COLUMNS / 2; i += C::THREADS) {
      const int row = i / (C::COLUMNS / 2), column = i % (C::COLUMNS / 2) * 2;
      sm80::store_shared_u32(panel + P::piece_offset(row, column / 8) + column % 8 * C::ELEMENT_BYTES,
                             load_query_pair(p, rows, query, row, column));
    }
    __syncthreads();  // Q is there
    lane_address = panel + sm80::query_lane<P>(threadIdx.x);
  }
  __device__ __forceinline__ void operator()(int m, int step, uint32_t (&raw)[4]) const {
    sm80::ldmatrix_x4(raw, sm80::at_block(lane_address, step) + m * 16 * P::kPitch);
  }
};

template <class C>
using Query = std::conditional_t<C::Q_IN_REGISTERS, QueryRegisters<C>, QueryShared<C>>;

// Bit r: whether block_mask lets row r see the 16 keys from `key` on. All lanes call it together.
struct BlockRows {
  const uint8_t* row;  // of block_mask, for row `lane` of the tile; or null: there is no block_mask, or no such row
  bool all;

  __device__ __forceinline__ BlockRows(const KernelParams& p, const Rows& rows, int batch, int lane)
      : row(nullptr), all(p.block_mask == nullptr) {
    if (all || lane >= rows.count) return;
    row = p.block_mask + batch * p.block_mask_strides.batch + rows.head(lane) * p.block_mask_strides.head +
          rows.position(lane) / p.block_size * p.block_mask_strides.row;
  }

  __device__ __forceinline__ uint32_t at(const KernelParams& p, int key) const {
    if (all) return ~0u;
    return __ballot_sync(0xffffffffu, row != nullptr && row[key / p.block_size * p.block_mask_strides.column] != 0);
  }
};

// s = -inf in rows whose bit in seen_rows is 0.
template <class C>
__device__ __forceinline__ void exclude_rows(sm80::Scores<C>& s, uint32_t seen_rows, int lane) {
#pragma unroll
  for (int r = 0; r < 2 * C::M_TILES; ++r) {
    if ((seen_rows >> sm80::lane_row(r, lane) & 1) != 0) continue;
#pragma unroll
    for (int n = 0; n < C::N_TILES; ++n) s[r / 2][n][r % 2 * 2] = s[r / 2][n][r % 2 * 2 + 1] = -INFINITY;
  }
}

// Keys [first_key, end_key) of the batch element, first_key a multiple of 16. `ring`: this warp's, idle; `query_smem`:
// the thread block's place for Q, where it isn't in registers.
template <class C>
__device__ __forceinline__ void attend(WarpResult<C>& result, const KernelParams& p, const Rows& rows, int batch,
                                       int kv_head, const BatchKeys& keys, int first_key, int end_key, uint32_t ring,
                                       const uint8_t* query_smem) {
  const int lane = threadIdx.x;
  int key = first_key + static_cast<int>(threadIdx.y) * C::KEYS;

  const uint16_t* k_rows =
      static_cast<const uint16_t*>(p.key) + batch * p.key_strides.batch + kv_head * p.key_strides.head;
  const uint16_t* v_rows =
      static_cast<const uint16_t*>(p.value) + batch * p.value_strides.batch + kv_head * p.value_strides.head;
  const BlockRows block_rows(p, rows, batch, lane);
  const auto copy = [&](int from_key, uint32_t stage) {
    if (from_key < end_key && block_rows.at(p, from_key) != 0) {
      const int count = end_key - from_key;
      copy_rows<typename C::Panel>(stage, k_rows + from_key * p.key_strides.row, p.key_strides.row, count, p.head_size,
                                   p.key_copy);
      copy_rows<typename C::Panel>(stage + C::Panel::kBytes, v_rows + from_key * p.value_strides.row,
                                   p.value_strides.row, count, p.v_head_size, p.value_copy);
    }
    sm80::cp_async_commit();
  };
#pragma unroll
  for (int i = 0; i < C::STAGES - 1; ++i) copy(key + i * C::UNIT_KEYS, ring + i * C::STAGE_SMEM);
  uint32_t stage = ring, free_stage = ring + C::RING_SMEM - C::STAGE_SMEM;

  const Query<C> query(p, rows, static_cast<const uint16_t*>(p.query) + batch * p.query_strides.batch, query_smem);
  ScoreTerms<C> terms(p, rows, batch, lane);
  bool any_far = false;
  for (; key < end_key; key += C::UNIT_KEYS) {
    const uint32_t seen_rows = block_rows.at(p, key);
    const int lane_key = key + lane % 4 * 4;
    if (seen_rows != 0) terms.load(p, lane_key);

    sm80::cp_async_wait<C::STAGES - 2>();  // this lane's share of the stage is there
    __syncwarp();                          // so are the others'; and all lanes are done with the stage that is free
    copy(key + (C::STAGES - 1) * C::UNIT_KEYS, free_stage);

    if (seen_rows != 0) {
      sm80::Scores<C> s = {};
      sm80::multiply_query_key<C::MATH, typename C::Panel, C::STEPS>(s, query,
                                                                     stage + sm80::key_lane<typename C::Panel>(lane));
      terms.apply(s, p, lane_key);
      if (!block_rows.all) exclude_rows<C>(s, seen_rows, lane);
      if (!keys.tile.clean(key, C::KEYS)) exclude_outside<C>(s, keys.range, rows, key, lane);
      float base[2 * C::M_TILES];
      sm80::raise_maximum<C>(s, result.o, result.softmax, base, p.factor, any_far);
      sm80::scores_to_weights<C>(s, result.softmax, base, p.factor);
      sm80::multiply_weight_value<C::MATH, typename C::Panel, C::O_TILES>(result.o, 0, s, stage + C::Panel::kBytes,
                                                                          lane);
    }
    free_stage = stage;
    stage = stage + C::STAGE_SMEM == ring + C::RING_SMEM ? ring : stage + C::STAGE_SMEM;
  }
}

}  // namespace ortflash::decode

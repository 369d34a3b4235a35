// output = O / sum, lse = m + log(sum); or, where the keys are split, both as fp32 for combine.cu.
#pragma once

#include "scores.cuh"

namespace ortflash::sm80 {

// Two adjacent columns, where `left` columns remain in the row.
template <class C>
__device__ __forceinline__ void store_pair(const KernelParams& p, int64_t element, float low, float high, int left) {
  uint8_t* to = static_cast<uint8_t*>(p.output) + element * C::TYPE_BYTES;
  const bool pair = left > 1 && p.output_store >= 2 * C::TYPE_BYTES;
  if constexpr (C::TYPE_BYTES == 2) {
    const uint32_t both = pack_pair<C::MATH>(low, high);
    if (pair) {
      *reinterpret_cast<uint32_t*>(to) = both;
    } else {
      reinterpret_cast<uint16_t*>(to)[0] = static_cast<uint16_t>(both);
      if (left > 1) reinterpret_cast<uint16_t*>(to)[1] = static_cast<uint16_t>(both >> 16);
    }
  } else {
    if (pair) {
      *reinterpret_cast<float2*>(to) = make_float2(low, high);
    } else {
      reinterpret_cast<float*>(to)[0] = low;
      if (left > 1) reinterpret_cast<float*>(to)[1] = high;
    }
  }
}

// 16-bit output through the warp's own rows of Q in shared memory, which nobody else reads, to whole 16-byte pieces.
template <class C>
__device__ __forceinline__ void store_through_smem(const KernelParams& p, int64_t tile_element, int valid_rows,
                                                   uint32_t warp_smem, int lane,
                                                   const float (&o)[C::M_TILES][C::ACCUMULATORS][4],
                                                   const float (&factor)[2 * C::M_TILES]) {
  using P = typename C::QueryPanel;
  constexpr int kTilesPerPanel = C::PANEL / 8;
  __syncwarp();  // all lanes have read their Q
#pragma unroll
  for (int r = 0; r < 2 * C::M_TILES; ++r) {
#pragma unroll
    for (int n = 0; n < C::O_TILES; ++n) {
      const uint32_t to = warp_smem + n / kTilesPerPanel * P::kBytes +
                          P::piece_offset(lane_row(r, lane), n % kTilesPerPanel) + lane % 4 * 4;
      store_shared_u32(to,
                       pack_pair<C::MATH>(o[r / 2][n][r % 2 * 2] * factor[r], o[r / 2][n][r % 2 * 2 + 1] * factor[r]));
    }
  }
  __syncwarp();  // all lanes' O is in shared memory
#pragma unroll
  for (int i = lane; i < C::WARP_ROWS * C::O_TILES; i += 32) {
    const int row = i / C::O_TILES, piece = i % C::O_TILES;
    if (row >= valid_rows || piece * 8 >= p.v_head_size) continue;
    const uint4 values =
        load_shared_u128(warp_smem + piece / kTilesPerPanel * P::kBytes + P::piece_offset(row, piece % kTilesPerPanel));
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.output) + tile_element + row * p.output_strides.row +
                              piece * 8) = values;
  }
}

// column0: the first value column of this tile. q_smem: Q's panels.
template <class C>
__device__ __forceinline__ void write_rows(const KernelParams& p, const TileIndex& tile,
                                           const RowMap<C::MAY_PACK>& rows, uint32_t q_smem, int warp_row, int column0,
                                           int lane, const float (&o)[C::M_TILES][C::ACCUMULATORS][4],
                                           const OnlineSoftmax (&state)[2 * C::M_TILES]) {
  const int64_t all_rows = static_cast<int64_t>(p.batch) * p.num_heads * p.q_len;
  const bool split = C::ALL && p.partial_output != nullptr;
  float output_factor[2 * C::M_TILES];
#pragma unroll
  for (int r = 0; r < 2 * C::M_TILES; ++r) {
    const int row = warp_row + lane_row(r, lane);
    const bool valid = rows.valid(row);
    const int head = rows.head(row);
    const float sink = valid && p.sinks != nullptr ? p.sinks[head * p.sinks_stride] : -INFINITY;
    const RowResult result = state[r].finish(p.to_natural, sink);  // all lanes take part
    output_factor[r] = split ? 1.0f : result.output_factor;
    const float sum = sum_across_row_lanes(state[r].row_sum);
    if (!valid || lane % 4 != 0 || column0 != 0) continue;
    const int64_t index = (static_cast<int64_t>(tile.batch) * p.num_heads + head) * p.q_len + rows.position(row);
    if (split) {
      p.partial_state[tile.key_split * all_rows + index] = make_float2(state[r].row_max * p.to_natural, sum);
    } else if (p.lse != nullptr) {
      p.lse[index] = result.lse;
    }
  }

  if constexpr (!C::ALL && C::TYPE_BYTES == 2) {
    if (p.output_store == 16 && p.v_head_size % 8 == 0) {
      const int first_row = rows.first_row + warp_row;
      const int64_t element = tile.batch * p.output_strides.batch + rows.first_head * p.output_strides.head +
                              first_row * p.output_strides.row;
      store_through_smem<C>(p, element, rows.rows - first_row, q_smem + warp_row * C::QueryPanel::kPitch, lane, o,
                            output_factor);
      return;
    }
  }
#pragma unroll
  for (int r = 0; r < 2 * C::M_TILES; ++r) {
    const int row = warp_row + lane_row(r, lane);
    if (!rows.valid(row)) continue;
    const int head = rows.head(row), position = rows.position(row);
    const int64_t element =
        tile.batch * p.output_strides.batch + head * p.output_strides.head + position * p.output_strides.row;
    const int64_t partial_row =
        tile.key_split * all_rows + (static_cast<int64_t>(tile.batch) * p.num_heads + head) * p.q_len + position;
#pragma unroll
    for (int n = 0; n < C::O_TILES; ++n) {
      const int column = column0 + n * 8 + lane % 4 * 2;
      const int left = p.v_head_size - column;
      if (left <= 0) continue;
      const float low = o[r / 2][n][r % 2 * 2] * output_factor[r];
      const float high = o[r / 2][n][r % 2 * 2 + 1] * output_factor[r];
      if (split) {
        float* to = p.partial_output + partial_row * p.v_head_size + column;
        to[0] = low;
        if (left > 1) to[1] = high;
      } else {
        store_pair<C>(p, element + column, low, high, left);
      }
    }
  }
}

}  // namespace ortflash::sm80

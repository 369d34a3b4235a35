// From the accumulator to global memory: O / l, and the log-sum-exp.
#pragma once

#include "online_softmax.cuh"
#include "shared_storage.cuh"

namespace ortflash::sm90 {

// Lane q of a quad holds words q of four 16-byte chunks, w[i] of chunk i; afterwards it holds all of chunk q.
__device__ __forceinline__ uint4 transpose_quad(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
  const uint32_t b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
  w[0] = odd ? a : w[0];
  w[1] = odd ? w[1] : a;
  w[2] = odd ? b : w[2];
  w[3] = odd ? w[3] : b;
  const uint32_t c = __shfl_xor_sync(~0u, upper ? w[0] : w[2], 2);
  const uint32_t d = __shfl_xor_sync(~0u, upper ? w[1] : w[3], 2);
  w[0] = upper ? c : w[0];
  w[2] = upper ? w[2] : c;
  w[1] = upper ? d : w[1];
  w[3] = upper ? w[3] : d;
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// A lane's two rows at the end of their tile: by what O is multiplied, from the sums of their weights, which are this
// lane's part alone unless P V brought them along. Writes the log-sum-exp.
template <class Tile, class Softmax>
__device__ __forceinline__ void finish_rows(const Softmax& softmax, float sum0, float sum1, const ForwardParams& p,
                                            const QueryTile& tile, int warpgroup_row, int first_column,
                                            float (&inverse_sum)[2]) {
  const float sum[2] = {Tile::SUM_BY_PRODUCT ? sum0 : quad_sum(sum0), Tile::SUM_BY_PRODUCT ? sum1 : quad_sum(sum1)};
  if (p.sinks == nullptr && p.softmax_lse == nullptr) {
    inverse_sum[0] = sum[0] == 0.0f ? 0.0f : reciprocal(sum[0]);
    inverse_sum[1] = sum[1] == 0.0f ? 0.0f : reciprocal(sum[1]);
    return;
  }
  const int thread = opaque(threadIdx.x % 128);
  const float sink = p.sinks != nullptr ? p.sinks[tile.head * p.sinks_stride] : -INFINITY;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int q_row = warpgroup_row + thread / 32 * 16 + thread % 32 / 4 + 8 * row;
    const auto result = softmax.finish(row, sum[row], Tile::SCALED ? 1.0f : p.scale, p.scale_log2, sink);
    if (p.softmax_lse != nullptr && q_row < p.q_len && thread % 4 == 0 && first_column == 0) {
      p.softmax_lse[lse_index(p, tile, q_row)] = result.lse;
    }
    inverse_sum[row] = result.inverse_sum;
  }
}

// A warpgroup's rows of one tile, from first_column on. o[4 j + 2 row + {0, 1}]: columns 8 j + 2 (lane % 4) + {0, 1}.
template <class Tile>
__device__ __forceinline__ void store_rows(const float (&o)[Tile::O_COLUMNS / 2], const float (&inverse_sum)[2],
                                           const ForwardParams& p, const QueryTile& tile, int warpgroup_row,
                                           int first_column) {
  using T = typename Tile::Element;
  const int thread = opaque(threadIdx.x % 128);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int q_row = warpgroup_row + thread / 32 * 16 + thread % 32 / 4 + 8 * row;
    const bool inside = q_row < p.q_len;
    T* output = output_row<T>(p, tile, q_row);
#pragma unroll
    for (int i = 2 * row; i < Tile::V_COLUMNS / 2; i += 16) {  // 32 columns: a 16-byte chunk for each lane of the quad
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        words[k] = pack<T>(o[i + 4 * k] * inverse_sum[row], o[i + 4 * k + 1] * inverse_sum[row]);
      }
      const uint4 chunk = transpose_quad(words);
      const int column = first_column + i / 16 * 32 + thread % 4 * 8;
      if (inside && column < p.v_head_size) *reinterpret_cast<uint4*>(output + column) = chunk;
      __syncwarp();  // one chunk at a time: the next tile's scores occupy the other registers
    }
  }
}

// The same through `slot`, panels of [64 rows][64] like those of Q, of which a warp uses its own 16 rows: half the
// instructions and a quarter of the time, and 128 bytes of a row side by side.
template <class Tile>
__device__ __forceinline__ void store_rows_by_slot(const float (&o)[Tile::O_COLUMNS / 2], const float (&inverse_sum)[2],
                                                   const ForwardParams& p, const QueryTile& tile, int warpgroup_row,
                                                   uint8_t* slot) {
  using T = typename Tile::Element;
  constexpr int kPanelBytes = kWarpgroupRows * kPanel * 2;
  const int thread = opaque(threadIdx.x % 128), lane = thread % 32;
  const int first_row = thread / 32 * 16;  // of the warp, in the slot
  const uint32_t to = smem_address(slot) + (first_row + lane % 16) * kPanel * 2;
#pragma unroll
  for (int c = 0; c < Tile::V_COLUMNS / 8; c += 2) {  // 16 columns: two 16-byte chunks of 16 rows
    uint32_t words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      words[k] = pack<T>(o[4 * c + 2 * k] * inverse_sum[k % 2], o[4 * c + 2 * k + 1] * inverse_sum[k % 2]);
    }
    store_matrices(to + c / 8 * kPanelBytes + (((c % 8 + lane / 16) ^ (lane % 8)) << 4), words[0], words[1], words[2],
                   words[3]);
  }
  __syncwarp();
  const int row = lane / 8, chunk = lane % 8;  // four rows at a time
  const uint8_t* from = slot + (first_row + row) * kPanel * 2;
  T* output = output_row<T>(p, tile, warpgroup_row + first_row + row) + chunk * 8;
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    const bool inside = warpgroup_row + first_row + row + i < p.q_len;
#pragma unroll
    for (int panel = 0; panel < Tile::PANELS; ++panel) {
      const uint8_t* at = from + panel * kPanelBytes + i * kPanel * 2 + ((chunk ^ (row + i) % 8) << 4);
      const uint4 eight = *reinterpret_cast<const uint4*>(at);
      if (inside && panel * kPanel + chunk * 8 < p.v_head_size) {
        *reinterpret_cast<uint4*>(output + i * p.output_row + panel * kPanel) = eight;
      }
    }
  }
  __syncwarp();
}

}  // namespace ortflash::sm90

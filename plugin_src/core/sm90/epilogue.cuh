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

// A warpgroup's rows of one tile, from first_column on. o[4 j + 2 row + {0, 1}]: columns 8 j + 2 (lane % 4) + {0, 1}.
template <class Tile, class Softmax>
__device__ __forceinline__ void store_rows(const float (&o)[Tile::O_COLUMNS / 2], const Softmax& softmax,
                                           const ForwardParams& p, const QueryTile& tile, int warpgroup_row,
                                           int first_column) {
  using T = typename Tile::Element;
  const int thread = opaque(threadIdx.x % 128);
  const float sink = p.sinks != nullptr ? p.sinks[tile.head * p.sinks_stride] : -INFINITY;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int q_row = warpgroup_row + thread / 32 * 16 + thread % 32 / 4 + 8 * row;
    const float sum = Tile::SUM_BY_PRODUCT ? o[Tile::O_COLUMNS / 2 - 4 + 2 * row] : quad_sum(softmax.row_sum[row]);
    const auto result = softmax.finish(row, sum, Tile::SCALED ? 1.0f : p.scale, p.scale_log2, sink);
    const bool inside = q_row < p.q_len;
    if (p.softmax_lse != nullptr && inside && thread % 4 == 0 && first_column == 0) {
      p.softmax_lse[lse_index(p, tile, q_row)] = result.lse;
    }
    T* output = output_row<T>(p, tile, q_row);
#pragma unroll
    for (int i = 2 * row; i < Tile::V_COLUMNS / 2; i += 16) {  // 32 columns: a 16-byte chunk for each lane of the quad
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        words[k] = pack<T>(o[i + 4 * k] * result.inverse_sum, o[i + 4 * k + 1] * result.inverse_sum);
      }
      const uint4 chunk = transpose_quad(words);
      const int column = first_column + i / 16 * 32 + thread % 4 * 8;
      if (inside && column < p.v_head_size) *reinterpret_cast<uint4*>(output + column) = chunk;
      __syncwarp();  // one chunk at a time: the next tile's scores occupy the other registers
    }
  }
}

}  // namespace ortflash::sm90

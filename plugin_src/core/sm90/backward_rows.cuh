// Before the gradients' kernel: what it wants to know about each row of queries, and zeros to add dQ to. After it: dQ
// from the warpgroups' layout to the tensor. And how a warpgroup's accumulator gets into a tensor.
#pragma once

#include "backward_params.h"
#include "backward_ptx.cuh"
#include "epilogue.cuh"

namespace ortflash::sm90 {

// A warpgroup's 64 rows of a gradient, times `factor`, to rows [first_row, row_count) and columns below column_count of
// one head. gradient[4 j + 2 row + {0, 1}]: row lane / 4 + 8 row of the warp's 16, column 8 j + 2 (lane % 4) + {0, 1}.
template <class T, int COUNT>
__device__ __forceinline__ void store_gradient(const float (&gradient)[COUNT], float factor, void* tensor,
                                               const Strides& strides, int batch, int head, int first_row,
                                               int row_count, int first_column, int column_count) {
  const int thread = opaque(threadIdx.x % 128);
  T* rows = static_cast<T*>(tensor) + batch * strides.batch + head * strides.head;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int at = first_row + thread / 32 * 16 + thread % 32 / 4 + 8 * row;
#pragma unroll
    for (int i = 2 * row; i < COUNT; i += 16) {  // 32 columns: a 16-byte chunk for each lane of the quad
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) words[k] = pack<T>(gradient[i + 4 * k] * factor, gradient[i + 4 * k + 1] * factor);
      const uint4 chunk = transpose_quad(words);
      const int column = first_column + i / 16 * 32 + thread % 4 * 8;
      if (at < row_count && column < column_count) {
        *reinterpret_cast<uint4*>(rows + at * strides.row + column) = chunk;
      }
    }
  }
}

constexpr int kRowsThreads = 256;

// One thread eight columns. Grid: enough for HEAD / 8 threads for each row of (B*N, padded_q_len).
template <class T, int HEAD>
__global__ void __launch_bounds__(kRowsThreads) prepare_rows(const __grid_constant__ BackwardParams p) {
  constexpr int kLanes = HEAD / 8;  // of a row
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kRowsThreads + threadIdx.x;
  const int64_t row = index / kLanes;
  const int column = static_cast<int>(index % kLanes) * 8;
  const int query = static_cast<int>(row % p.padded_q_len);
  const int batch_head = static_cast<int>(row / p.padded_q_len);
  const int batch = batch_head / p.num_heads, head = batch_head - batch * p.num_heads;
  const bool inside = batch < p.batch && query < p.q_len;
  float sum = 0.0f;
  if (inside && column < p.head_size) {
    const auto load = [&](const void* tensor, const Strides& s) {
      return *reinterpret_cast<const uint4*>(static_cast<const T*>(tensor) + batch * s.batch + head * s.head +
                                             query * s.row + column);
    };
    const uint4 o = load(p.output, p.output_strides), d = load(p.d_output, p.d_output_strides);
    const uint32_t o_words[4] = {o.x, o.y, o.z, o.w}, d_words[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 a = unpack<T>(o_words[i]), b = unpack<T>(d_words[i]);
      sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (batch >= p.batch) return;
  auto* zeros = reinterpret_cast<float4*>(p.d_query_sum) + index * 2;
  zeros[0] = zeros[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (column != 0) return;
  const float lse = inside ? p.softmax_lse[static_cast<int64_t>(batch_head) * p.q_len + query] : -INFINITY;
  p.lse_log2[row] = lse == -INFINITY ? INFINITY : lse * kLog2E;
  p.delta[row] = sum;
}

// One thread block a warpgroup's part of a tile: grid B*N * query_tiles * 2, 128 threads.
template <class T, int HEAD>
__global__ void __launch_bounds__(128) finish_queries(const __grid_constant__ BackwardParams p) {
  constexpr int kBlockQ = HEAD == 64 ? 128 : 64;
  const int group = blockIdx.x % 2, tile = blockIdx.x / 2 % p.query_tiles;
  const int batch_head = blockIdx.x / 2 / p.query_tiles;
  const int batch = batch_head / p.num_heads, head = batch_head - batch * p.num_heads;
  const auto* from = reinterpret_cast<const float4*>(p.d_query_sum) + int64_t{blockIdx.x} * 1024 + threadIdx.x;
  float gradient[32];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 four = from[128 * j];
    gradient[4 * j] = four.x;
    gradient[4 * j + 1] = four.y;
    gradient[4 * j + 2] = four.z;
    gradient[4 * j + 3] = four.w;
  }
  store_gradient<T>(gradient, p.scale, p.d_query, p.d_query_strides, batch, head,
                    tile * kBlockQ + (HEAD == 64 ? group * 64 : 0), p.q_len, HEAD == 64 ? 0 : group * 64, p.head_size);
}

}  // namespace ortflash::sm90

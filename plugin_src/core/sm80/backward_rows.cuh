// What the backward knows about each row of queries before it starts (RowStatistics), one warp a row; and d_sinks.
#pragma once

#include "../attention_grad.h"
#include "backward_kernels.h"
#include "backward_tile.cuh"

namespace ortflash::sm80 {

template <Math MATH>
__device__ __forceinline__ float element_at(const void* base, int64_t element) {
  if constexpr (kElementBytes<MATH> == 4) {
    return static_cast<const float*>(base)[element];
  } else {
    const uint16_t bits = static_cast<const uint16_t*>(base)[element];
    return MATH == Math::kFloat16 ? f16_to_float(bits) : bf16_to_float(bits);
  }
}

__device__ __forceinline__ float sum_across_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// From here on a row's weights are divided by their sum (kLargeLse). TF32 leaves 2^-11 of a score, so that exp(S - lse)
// with the lse of more exact scores is no longer a weight long before lse's own rounding counts.
template <Math MATH>
constexpr float kCorrectedLse = MATH == Math::kTf32 ? 64.0f : kLargeLse;

// An element as the products of MATH see it.
template <Math MATH>
__device__ __forceinline__ float operand_at(const void* base, int64_t element) {
  const float x = element_at<MATH>(base, element);
  return MATH == Math::kTf32 ? __uint_as_float(round_to_tf32(x)) : x;
}

// softcap, bias, mask and block_mask of one scaled product; modify_scores() has them for a tile.
template <Math MATH>
__device__ __forceinline__ float modify_score(const KernelParams& p, const HeadTerms& terms, float score, int query,
                                              int key) {
  if (p.softcap != 0.0f) score = p.softcap * tanhf(score * p.softcap_inverse);
  if (terms.bias != nullptr) {
    const uint8_t* from = terms.bias + (query * p.bias_strides.row + key * p.bias_strides.column) * p.bias_bytes;
    score += p.bias_bytes == 4 ? *reinterpret_cast<const float*>(from) : element_at<MATH>(from, 0);
  }
  if (terms.mask != nullptr && terms.mask[query * p.mask_strides.row + key * p.mask_strides.column] == 0) {
    score = p.mask_fill;
  }
  const Strides& s = p.block_mask_strides;
  const bool seen = terms.block_mask == nullptr ||
                    terms.block_mask[query / p.block_size * s.row + key / p.block_size * s.column] != 0;
  return seen ? score : -INFINITY;
}

// sum_j exp(S_j - lse) of one row, key after key: for rows with a large lse, of which there are few.
template <Math MATH>
__device__ __noinline__ float sum_of_weights(const KernelParams& p, int batch, int head, int query, float lse) {
  const KeyRange keys(p, batch);
  const HeadTerms terms(p, batch, head);
  const int64_t q = batch * p.query_strides.batch + head * p.query_strides.head + query * p.query_strides.row;
  const int64_t k = batch * p.key_strides.batch + head / p.group * p.key_strides.head;
  float sum = 0.0f;
  for (int key = keys.lower(query) + threadIdx.x % 32; key < keys.upper(query); key += 32) {
    float product = 0.0f;
    for (int column = 0; column < p.head_size; ++column) {
      product = fmaf(operand_at<MATH>(p.query, q + column),
                     operand_at<MATH>(p.key, k + key * p.key_strides.row + column), product);
    }
    sum += expf(modify_score<MATH>(p, terms, product * p.scale, query, key) - lse);
  }
  return sum_across_warp(sum);
}

template <Math MATH>
__global__ void __launch_bounds__(kRowStatisticsWarps * 32)
    row_statistics_kernel(const __grid_constant__ BackwardParams params) {
  const KernelParams& p = params.forward;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowStatisticsWarps + threadIdx.x / 32;
  if (row >= static_cast<int64_t>(p.batch) * p.num_heads * p.q_len) return;
  const int query = row % p.q_len, head = row / p.q_len % p.num_heads, batch = row / p.q_len / p.num_heads;
  const auto element = [&](const Strides& s) { return batch * s.batch + head * s.head + query * s.row; };
  const int64_t output = element(p.output_strides), d_output = element(params.d_output_strides);
  float delta = 0.0f;
  for (int column = threadIdx.x % 32; column < p.v_head_size; column += 32) {
    delta =
        fmaf(element_at<MATH>(p.output, output + column), element_at<MATH>(params.d_output, d_output + column), delta);
  }
  delta = sum_across_warp(delta);
  const float lse = p.lse[row];
  float correction = 0.0f;
  if (fabsf(lse) >= kCorrectedLse<MATH> && lse != -INFINITY) {
    const float sink = p.sinks != nullptr ? p.sinks[head * p.sinks_stride] : -INFINITY;
    correction = -log2f(sum_of_weights<MATH>(p, batch, head, query, lse) + expf(sink - lse));
  }
  if (threadIdx.x % 32 == 0) {
    params.rows.lse[row] = lse == -INFINITY ? INFINITY : lse;
    params.rows.correction[row] = correction;
    params.rows.delta[row] = delta;
  }
}

// d_sink = -sum exp(sink - lse) * delta over all rows that have this sink; one thread block a sink, always in the same
// order.
static __global__ void __launch_bounds__(kSinksThreads)
    sinks_gradient_kernel(const __grid_constant__ BackwardParams params) {
  const KernelParams& p = params.forward;
  const bool one = p.sinks_stride == 0;
  const int64_t heads = one ? p.num_heads : 1, first_head = one ? 0 : blockIdx.x;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < p.batch * heads * p.q_len; i += kSinksThreads) {
    const int64_t query = i % p.q_len, head = first_head + i / p.q_len % heads, batch = i / p.q_len / heads;
    const int64_t row = (batch * p.num_heads + head) * p.q_len + query;
    const RowState state = load_row(params.rows, row);
    sum -= fast_exp2(fmaf(p.sinks[head * p.sinks_stride] - state.lse, kLog2e, state.correction)) * state.delta;
  }
  __shared__ float sums[kSinksThreads];
  sums[threadIdx.x] = sum;
  for (int step = kSinksThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
  }
  if (threadIdx.x == 0) params.d_sinks[blockIdx.x] = sums[0];
}

}  // namespace ortflash::sm80

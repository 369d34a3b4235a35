// The running softmax of one query row, kept by the four lanes that share the row.
//
//   m' = max(m, max_j s_j)    p_j = exp(s_j - m')    sum' = sum * exp(m - m') + sum_j p_j    O' = O * exp(m - m') + p V
//
// `factor` turns score differences into exponents of 2: scale * log2(e) where scores are the raw products, log2(e)
// where they are finished scores. s_j * factor - m * factor is one multiply-add, and the rounding of m * factor is the
// same for the whole row, so it cancels in the division by the sum; but near a fill of -3.4e38 it is astronomic. Such a
// row is `far`, and m must be subtracted before the product.
//
// Lazily, m' stays m while the new maximum is at most kLazyLimit above it: p is then at most 2^kLazyLimit, which fits
// fp16, sums are as exact as before, and most blocks skip the rescaling of O.
#pragma once

#include <cmath>

namespace ortflash {

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kLazyLimit = 8.0f;
constexpr float kFarLimit = 1e6f;  // |m * factor| past which it is too coarse: its rounding is 0.03 here

__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float max_across_row_lanes(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float sum_across_row_lanes(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// What a finished row multiplies O by, and its natural log-sum-exp.
struct RowResult {
  float output_factor;
  float lse;
};

struct OnlineSoftmax {
  float row_max = -INFINITY;
  float row_sum = 0.0f;  // this lane's part; the lanes add up at the end

  // Takes the maximum of a new block (over the whole row) and returns exp(m - m'), the factor for what came before.
  __device__ __forceinline__ float raise_max(float block_max, float factor) {
    const float previous = row_max;
    const bool keep = (block_max - previous) * factor <= kLazyLimit;  // never where previous is -inf: inf or NaN
    row_max = keep ? previous : fmaxf(previous, block_max);
    const float rescale = keep ? 1.0f : fast_exp2((previous - base()) * factor);
    row_sum *= rescale;
    return rescale;
  }

  // The m that is subtracted: 0 for a row in which nothing took part so far, since -inf - -inf is NaN.
  __device__ __forceinline__ float base() const { return row_max == -INFINITY ? 0.0f : row_max; }

  __device__ __forceinline__ bool far(float factor) const { return fabsf(base() * factor) > kFarLimit; }

  // After the last block; to_natural = factor / log2(e). A sink is one more logit, in the sum only. An empty row gives
  // O * 0 and -inf.
  __device__ __forceinline__ RowResult finish(float to_natural, float sink) const {
    const float sum = sum_across_row_lanes(row_sum);
    const float natural_max = row_max * to_natural;
    const float top = fmaxf(natural_max, sink);
    if (top == -INFINITY) return {0.0f, -INFINITY};
    const float shift = fast_exp2((natural_max - top) * kLog2e);
    const float total = sum * shift + fast_exp2((sink - top) * kLog2e);
    return {shift / total, top + logf(total)};
  }
};

}  // namespace ortflash

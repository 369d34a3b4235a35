// The running softmax of the 16 x N scores that a warp keeps in a wgmma accumulator.
//
//   m' = max(m, max_j s_j)      p_j = 2^(a s_j - a m')      l' = l 2^(a m - a m') + sum_j p_j      a = scale log2(e)
//
// A lane holds two rows, lane / 4 and lane / 4 + 8, and of each the columns 8 j + 2 (lane % 4) + {0, 1}:
// s[4 j + 2 row + {0, 1}]. Row sums stay one partial a lane until the end.
#pragma once

#include <cmath>

#include "ptx.cuh"

namespace ortflash::sm90 {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// SUMS: whether l is kept here; otherwise P V brings it along.
template <bool LAZY, bool SUMS>
struct OnlineSoftmax {
  float row_max[2] = {-INFINITY, -INFINITY};  // m, in the units of s
  float row_sum[2] = {0.0f, 0.0f};            // l, this lane's part

  // s becomes p; whatever was accumulated before must be multiplied by factor.
  template <int COUNT>
  __device__ __forceinline__ void step(float (&s)[COUNT], float scale_log2, float (&factor)[2]) {
    // Two chains a row: with one warp a scheduler, latency counts.
    float chain[2][2] = {{row_max[0], -INFINITY}, {row_max[1], -INFINITY}};
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
      float& longest = chain[i / 2 & 1][i / 4 & 1];
      longest = fmaxf(longest, fmaxf(s[i], s[i + 1]));
    }
    float shift[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float before = row_max[row];
      float now = quad_max(fmaxf(chain[row][0], chain[row][1]));
      if constexpr (LAZY) now = (now - before) * scale_log2 <= 8.0f ? before : now;
      row_max[row] = now;
      // A row of nothing but -inf keeps m = -inf, and -inf - -inf would be NaN.
      shift[row] = now == -INFINITY ? 0.0f : __fmul_rn(now, scale_log2);
      factor[row] = exp2_approx(__fadd_rn(__fmul_rn(before, scale_log2), -shift[row]));
      if (fabsf(shift[row]) > kFar) factor[row] = exp2_approx(__fmul_rn(before - now, scale_log2));
    }
    if (fmaxf(fabsf(shift[0]), fabsf(shift[1])) > kFar) subtract_first(s, shift);

    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
      const int row = i / 2 & 1;
      s[i] = exp2_approx(fmaf(s[i], scale_log2, -shift[row]));
      s[i + 1] = exp2_approx(fmaf(s[i + 1], scale_log2, -shift[row]));
      if constexpr (SUMS) sum[row] += s[i] + s[i + 1];
    }
    if constexpr (SUMS) {
      row_sum[0] = fmaf(row_sum[0], factor[0], sum[0]);
      row_sum[1] = fmaf(row_sum[1], factor[1], sum[1]);
    }
  }

  // The last word on one row, whose l is `sum`: what the accumulator is multiplied by, and the natural log-sum-exp.
  // `scale` turns scores into natural units and `scale_log2` into those of step(); `sink` is one more logit in natural
  // units, -inf = none, that has no value row.
  struct Result {
    float inverse_sum;
    float lse;
  };
  __device__ __forceinline__ Result finish(int row, float sum, float scale, float scale_log2, float sink) const {
    if (sink == -INFINITY && sum == 0.0f) return {0.0f, -INFINITY};
    const float top = row_max[row] * scale;  // -inf where nothing took part
    // step() rounds a m, and with it every p of the row by the same factor 2^rounded.
    const float shift = __fmul_rn(row_max[row], scale_log2);
    const float rounded = fabsf(shift) > kFar ? 0.0f : fmaf(row_max[row], scale_log2, -shift);
    if (sink == -INFINITY) return {1.0f / sum, top + (logf(sum) - rounded * kLn2)};

    const float both = fmaxf(top, sink);
    const float weight = top == -INFINITY ? 0.0f : exp2_approx((top - both) * kLog2E - rounded);
    const float total = sum * weight + exp2_approx((sink - both) * kLog2E);
    return {weight / total, both + logf(total)};
  }

 private:
  // Past this, a m has lost so much of its fraction that a s - a m is off by more than 2^-4.
  static constexpr float kFar = 1 << 20;

  // s - m before anything is multiplied, in the rows that need it.
  template <int COUNT>
  __device__ __forceinline__ void subtract_first(float (&s)[COUNT], float (&shift)[2]) const {
    const float subtrahend[2] = {fabsf(shift[0]) > kFar ? row_max[0] : 0.0f,
                                 fabsf(shift[1]) > kFar ? row_max[1] : 0.0f};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) s[i] -= subtrahend[i / 2 & 1];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (fabsf(shift[row]) > kFar) shift[row] = 0.0f;
    }
  }
};

}  // namespace ortflash::sm90

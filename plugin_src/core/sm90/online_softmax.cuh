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

template <bool LAZY>
struct OnlineSoftmax {
  float row_max[2] = {-INFINITY, -INFINITY};  // m, in the units of s
  float row_sum[2] = {0.0f, 0.0f};            // l, this lane's part

  // s becomes p; whatever was accumulated before must be multiplied by factor.
  template <int COUNT>
  __device__ __forceinline__ void step(float (&s)[COUNT], float scale_log2, float (&factor)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      // Two chains a row: with one warp a scheduler, latency counts.
      float even = row_max[row], odd = -INFINITY;
#pragma unroll
      for (int i = 2 * row; i < COUNT; i += 4) {
        float& chain = i & 4 ? odd : even;
        chain = fmaxf(chain, fmaxf(s[i], s[i + 1]));
      }
      const float before = row_max[row];
      float now = quad_max(fmaxf(even, odd));
      if constexpr (LAZY) now = (now - before) * scale_log2 <= 8.0f ? before : now;
      row_max[row] = now;

      // A row of nothing but -inf keeps m = -inf, and -inf - -inf would be NaN.
      float shift = now == -INFINITY ? 0.0f : __fmul_rn(now, scale_log2);
      factor[row] = exp2_approx(__fadd_rn(__fmul_rn(before, scale_log2), -shift));
      if (fabsf(shift) > kFar) {
        // a m has lost the fraction: subtract first.
#pragma unroll
        for (int i = 2 * row; i < COUNT; i += 4) {
          s[i] -= now;
          s[i + 1] -= now;
        }
        factor[row] = exp2_approx(__fmul_rn(before - now, scale_log2));
        shift = 0.0f;
      }

      float sum = 0.0f;
#pragma unroll
      for (int i = 2 * row; i < COUNT; i += 4) {
        s[i] = exp2_approx(fmaf(s[i], scale_log2, -shift));
        s[i + 1] = exp2_approx(fmaf(s[i + 1], scale_log2, -shift));
        sum += s[i] + s[i + 1];
      }
      row_sum[row] = fmaf(row_sum[row], factor[row], sum);
    }
  }

  // The last word on one row, once all lanes' parts are summed: what the accumulator is multiplied by, and the
  // natural log-sum-exp. `scale` turns scores into natural units; `sink` is one more logit in these, -inf = none, that
  // has no value row.
  struct Result {
    float inverse_sum;
    float lse;
  };
  __device__ __forceinline__ Result finish(int row, float scale, float sink) const {
    const float sum = quad_sum(row_sum[row]);
    const float top = row_max[row] * scale;  // -inf where nothing took part
    if (sink == -INFINITY) {
      if (sum == 0.0f) return {0.0f, -INFINITY};
      return {1.0f / sum, top + __logf(sum)};
    }
    const float both = fmaxf(top, sink);
    const float weight = top == -INFINITY ? 0.0f : exp2_approx((top - both) * kLog2E);
    const float total = sum * weight + exp2_approx((sink - both) * kLog2E);
    return {weight / total, both + __logf(total)};
  }

 private:
  static constexpr float kFar = 1 << 20;
};

}  // namespace ortflash::sm90

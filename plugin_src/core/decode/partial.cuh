// Partial results and how they come together: with M the largest of the maxima m_i (and the sink),
//
//   total = sum_i exp(m_i - M) sum_i + exp(sink - M)
//   output = sum_i exp(m_i - M) O_i / total        lse = M + log(total)
//
// A partial state is (m_i, sum_i). (Not their log-sum-exp, in which a maximum of -3.4e38 would swallow the sum.)
#pragma once

#include <cmath>
#include <cstdint>

#include "../kernel_params.h"
#include "../online_softmax.cuh"
#include "../sm80/math.cuh"

namespace ortflash::decode {

// exp(m - top); 0 where nothing took part anywhere.
__device__ __forceinline__ float partial_weight(float m, float top) {
  return top == -INFINITY ? 0.0f : fast_exp2((m - top) * kLog2e);
}

__device__ __forceinline__ float sink_of(const KernelParams& p, int head) {
  return p.sinks != nullptr ? p.sinks[static_cast<int64_t>(head) * p.sinks_stride] : -INFINITY;
}

// One finished row of the output, written by a group of threads.
template <sm80::Math MATH>
struct OutputRow {
  uint16_t* output;
  float inverse;  // of the total

  // top, total: of all partial results and the sink. `writes_lse`: in one thread of the group.
  __device__ __forceinline__ OutputRow(const KernelParams& p, int batch, int head, int position, float top, float total,
                                       bool writes_lse) {
    output = static_cast<uint16_t*>(p.output) + batch * p.output_strides.batch + head * p.output_strides.head +
             position * p.output_strides.row;
    inverse = top == -INFINITY ? 0.0f : 1.0f / total;
    if (writes_lse && p.lse != nullptr) {
      p.lse[(static_cast<int64_t>(batch) * p.num_heads + head) * p.q_len + position] =
          top == -INFINITY ? -INFINITY : top + logf(total);
    }
  }

  // Columns `column` and column + 1, of which those before v_head_size exist.
  __device__ __forceinline__ void store(const KernelParams& p, int column, float low, float high) const {
    const uint32_t pair = sm80::pack_pair<MATH>(low * inverse, high * inverse);
    if (column + 1 < p.v_head_size && p.output_store >= 4) {
      *reinterpret_cast<uint32_t*>(output + column) = pair;
    } else {
      if (column < p.v_head_size) output[column] = static_cast<uint16_t>(pair);
      if (column + 1 < p.v_head_size) output[column + 1] = static_cast<uint16_t>(pair >> 16);
    }
  }
};

}  // namespace ortflash::decode

// Puts the partial results of split keys together: with M the largest of the m_i and the sink,
//
//   total = sum_i exp(m_i - M) sum_i + exp(sink - M)
//   output = sum_i exp(m_i - M) O_i / total        lse = M + log(total)
#include <cmath>
#include <cstdint>

#include "../kernel_params.h"
#include "../online_softmax.cuh"
#include "combine.h"
#include "math.cuh"

namespace ortflash::sm80 {
namespace {

// One thread block a row of the output; blockDim.x threads go over its columns.
template <Math MATH>
__global__ void combine_kernel(const __grid_constant__ KernelParams p) {
  const int64_t row = blockIdx.x;
  const int64_t rows = static_cast<int64_t>(p.batch) * p.num_heads * p.q_len;
  const int64_t position = row % p.q_len, head = row / p.q_len % p.num_heads, batch = row / p.q_len / p.num_heads;

  const float sink = p.sinks != nullptr ? p.sinks[head * p.sinks_stride] : -INFINITY;
  float top = sink;
  for (int i = 0; i < p.key_splits; ++i) top = fmaxf(top, p.partial_state[i * rows + row].x);
  const bool empty = top == -INFINITY;
  const auto weight = [&](float m) { return empty ? 0.0f : fast_exp2((m - top) * kLog2e); };
  float total = weight(sink);
  for (int i = 0; i < p.key_splits; ++i) {
    const float2 state = p.partial_state[i * rows + row];
    total += weight(state.x) * state.y;
  }
  if (threadIdx.x == 0 && p.lse != nullptr) p.lse[row] = empty ? -INFINITY : top + logf(total);

  const int64_t to = batch * p.output_strides.batch + head * p.output_strides.head + position * p.output_strides.row;
  for (int column = threadIdx.x; column < p.v_head_size; column += blockDim.x) {
    float sum = 0.0f;
    for (int i = 0; i < p.key_splits; ++i) {
      sum += weight(p.partial_state[i * rows + row].x) * p.partial_output[(i * rows + row) * p.v_head_size + column];
    }
    const float value = empty ? 0.0f : sum / total;
    if constexpr (kTypeBytes<MATH> == 4) {
      static_cast<float*>(p.output)[to + column] = value;
    } else {
      static_cast<uint16_t*>(p.output)[to + column] = static_cast<uint16_t>(pack_pair<MATH>(value, 0.0f));
    }
  }
}

}  // namespace

const void* combine_kernel_for(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return reinterpret_cast<const void*>(&combine_kernel<Math::kFloat16>);
    case DType::kBFloat16:
      return reinterpret_cast<const void*>(&combine_kernel<Math::kBFloat16>);
    default:
      return reinterpret_cast<const void*>(&combine_kernel<Math::kTf32>);
  }
}

}  // namespace ortflash::sm80

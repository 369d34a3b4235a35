// CUDA's entries for the dispatcher (implementation.h): the list of implementations, and the call that has no keys.
#include <cstdio>

#include "decode/implementation.h"
#include "gpu.h"
#include "implementation.h"
#include "sm80/implementation.h"
#ifdef ORTFLASH_WITH_SM90
#include "sm90/implementation.h"
#endif
#include "status.h"
#include "windows/implementation.h"

namespace ortflash {
namespace {

// One thread an output element, one more a row for its log-sum-exp.
template <class Element>
__global__ void write_without_keys(Element* output, Strides strides, float* lse, const float* sinks,
                                   int64_t sinks_stride, int64_t rows, int64_t num_heads, int64_t q_len,
                                   int64_t v_head_size) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * (v_head_size + 1);
       i += step) {
    const int64_t row = i / (v_head_size + 1), column = i % (v_head_size + 1);
    const int64_t position = row % q_len, head = row / q_len % num_heads, batch = row / q_len / num_heads;
    if (column < v_head_size) {
      output[batch * strides.batch + head * strides.head + position * strides.row + column] = Element{0};
    } else if (lse != nullptr) {
      lse[row] = sinks == nullptr ? -INFINITY : sinks[head * sinks_stride];
    }
  }
}

}  // namespace

ImplementationList cuda_implementations() {
  static const Implementation implementations[] = {
      windows::implementation(),      decode::implementation(), decode::fused_implementation(),
#ifdef ORTFLASH_WITH_SM90
      sm90::implementation(),
#endif
      sm80::dropout_implementation(), sm80::implementation(),
  };
  return {implementations, sizeof(implementations) / sizeof(implementations[0])};
}

size_t cuda_workspace_bound(const AttentionParams& smallest, const AttentionParams& largest) {
  const size_t for_decode = decode::workspace_bound(smallest, largest);
  const size_t for_sm80 = sm80::workspace_bound(smallest, largest);
  return for_decode > for_sm80 ? for_decode : for_sm80;  // the others need none
}

Status cuda_forward_without_keys(const AttentionParams& p, const Execution& execution) {
  const int64_t rows = p.batch * p.num_heads * p.q_len;
  const int64_t blocks = (rows * (p.v_head_size + 1) + 255) / 256;
  const int grid = static_cast<int>(blocks < 65536 ? blocks : 65536);
  const cudaStream_t stream = static_cast<cudaStream_t>(execution.stream);
  if (p.dtype == DType::kFloat32) {
    write_without_keys<<<grid, 256, 0, stream>>>(static_cast<uint32_t*>(p.output), p.output_strides, p.softmax_lse,
                                                 p.sinks, p.sinks_stride, rows, p.num_heads, p.q_len, p.v_head_size);
  } else {
    write_without_keys<<<grid, 256, 0, stream>>>(static_cast<uint16_t*>(p.output), p.output_strides, p.softmax_lse,
                                                 p.sinks, p.sinks_stride, rows, p.num_heads, p.q_len, p.v_head_size);
  }
  return cuda_status(cudaGetLastError(), "launching the kernel for no keys");
}

void cuda_device_name(char* name, size_t capacity) {
  const Gpu* gpu = nullptr;
  const Status status = current_gpu(&gpu);
  if (status.ok()) {
    std::snprintf(name, capacity, "%s (sm_%d%d)", gpu->name, gpu->major, gpu->minor);
  } else {
    std::snprintf(name, capacity, "%s", status.message);
  }
}

}  // namespace ortflash

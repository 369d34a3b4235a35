#include "implementation.h"

#include <atomic>
#include <cstdio>

#include "../gpu.h"
#include "../planned.h"
#include "../status.h"
#include "combine.h"
#include "kernels.h"
#include "plan.h"

#ifndef ORTFLASH_CUDA_ARCHITECTURES_TEXT
#define ORTFLASH_CUDA_ARCHITECTURES_TEXT "unknown"
#endif

namespace ortflash::sm80 {
namespace {

// Whether this library has code for the current GPU; asked of one kernel, since all are built for the same list.
Status hardware() {
  const Gpu* gpu = nullptr;
  Status status = current_gpu(&gpu);
  if (!status.ok()) return status;
  if (gpu->major < 8) {
    return make_status(StatusCode::kUnsupported, "%s (sm_%d%d) is older than sm_80, the oldest GPU with cp.async",
                       gpu->name, gpu->major, gpu->minor);
  }
  static std::atomic<uint64_t> known_good{0};  // one bit a device
  const uint64_t bit = uint64_t{1} << gpu->device;
  if (known_good.load(std::memory_order_relaxed) & bit) return {};
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, float16_kernels().first[0].function);
  if (error != cudaSuccess) {
    cudaGetLastError();  // the error is reported here, and not once more by the next call
    if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction) {
      return cuda_status(error, "loading the kernels");
    }
    return make_status(StatusCode::kUnsupported,
                       "this build has no code for %s (sm_%d%d), only for %s; rebuild with "
                       "ORTFLASH_CUDA_ARCHITECTURES=%d%d",
                       gpu->name, gpu->major, gpu->minor, ORTFLASH_CUDA_ARCHITECTURES_TEXT, gpu->major, gpu->minor);
  }
  known_good.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

void name_of(const Plan& plan, char* name, size_t capacity) {
  if (plan.params.key_splits > 1) {
    std::snprintf(name, capacity, "%s, keys split %d ways", plan.kernel->name, plan.params.key_splits);
  } else {
    std::snprintf(name, capacity, "%s", plan.kernel->name);
  }
}

using Forward = Planned<AttentionParams, Plan, make_plan, name_of>;

Status forward(const AttentionParams& params, const Execution& execution) {
  Plan plan;
  Status status = Forward::plan(params, &plan);
  if (!status.ok()) return status;
  KernelParams& p = plan.params;
  if (p.key_splits > 1) {
    p.partial_state = static_cast<float2*>(execution.workspace);
    p.partial_output = reinterpret_cast<float*>(p.partial_state + plan.partial_rows());
  }
  const cudaStream_t stream = static_cast<cudaStream_t>(execution.stream);
  if (plan.pieces.count != 0) {
    const uint8_t* pieces = static_cast<const uint8_t*>(execution.workspace);
    p.query = pieces + plan.pieces.query;
    p.key = pieces + plan.pieces.key;
    p.value = pieces + plan.pieces.value;
    status = cut_operands(params, plan.pieces, execution.workspace, stream);
    if (!status.ok()) return status;
  }

  // More than 48 KB of shared memory must be asked for, once a kernel and device; asking twice does no harm.
  status = cuda_status(cudaFuncSetAttribute(plan.kernel->function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            plan.kernel->shared_bytes),
                       "asking for shared memory");
  if (!status.ok()) return status;
  void* arguments[] = {&p};
  status = cuda_status(cudaLaunchKernel(plan.kernel->function, dim3(plan.grid), dim3(plan.kernel->threads), arguments,
                                        plan.kernel->shared_bytes, stream),
                       plan.kernel->name);
  if (!status.ok() || p.key_splits == 1) return status;
  const unsigned rows = static_cast<unsigned>(p.batch * p.num_heads * p.q_len);
  return cuda_status(cudaLaunchKernel(combine_kernel_for(params.dtype), dim3(rows), dim3(128), arguments, 0, stream),
                     "combining split keys");
}

Status accepts_dropout(const AttentionParams& params) {
  if (params.dropout_p > 0) return Forward::accepts(params);
  return make_status(StatusCode::kUnsupported, "sm80-dropout takes calls with dropout only");
}

}  // namespace

Implementation dropout_implementation() {
  return {"sm80-dropout", kAllFeatures,     256, hardware, accepts_dropout, Forward::workspace_size,
          forward,        Forward::describe};
}

Implementation implementation() {
  return {"sm80",           kAllFeatures & ~kFeatureDropout, 512,     hardware,
          Forward::accepts, Forward::workspace_size,         forward, Forward::describe};
}

}  // namespace ortflash::sm80

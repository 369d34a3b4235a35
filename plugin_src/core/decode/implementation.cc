#include "implementation.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>

#include "../gpu.h"
#include "../sm80/implementation.h"
#include "../status.h"
#include "plan.h"

namespace ortflash::decode {
namespace {

Status plan_for(const AttentionParams& params, Plan* plan) {
  const Gpu* gpu = nullptr;
  const Status status = current_gpu(&gpu);
  return status.ok() ? make_plan(params, *gpu, plan) : status;
}

Status accepts(const AttentionParams& params) {
  Plan plan;
  return plan_for(params, &plan);
}

size_t workspace_size(const AttentionParams& params, const Execution&) {
  Plan plan;
  return plan_for(params, &plan).ok() ? plan.workspace_bytes() : 0;
}

void describe(const AttentionParams& params, const Execution&, char* name, size_t capacity) {
  Plan plan;
  const Status status = plan_for(params, &plan);
  if (!status.ok()) {
    std::snprintf(name, capacity, "%s", status.message);
  } else {
    std::snprintf(name, capacity, "%s, keys of a head in %d slices", plan.kernel->name, plan.params.key_splits);
  }
}

// Asks for the shared memory, once a kernel and device (doing it twice does no harm), and finds out whether the kernels
// were compiled for a GPU that knows programmatic dependent launch: only then do they wait for what came before
// themselves (dependent_launch.cuh).
Status prepare(const Kernel& kernel, DType dtype, const Gpu& gpu, bool* dependent) {
  constexpr int kMostKernels = 16;
  static std::atomic<uint64_t> prepared[2][kMostKernels], dependents[2][kMostKernels];  // one bit a device
  const int type = dtype == DType::kFloat16, index = static_cast<int>(&kernel - kernels_for(dtype).first);
  const uint64_t bit = uint64_t{1} << gpu.device;
  if ((prepared[type][index].load(std::memory_order_acquire) & bit) == 0) {
    cudaFuncAttributes attributes;
    Status status = cuda_status(cudaFuncGetAttributes(&attributes, kernel.forward), kernel.name);
    if (status.ok()) {
      status = cuda_status(
          cudaFuncSetAttribute(kernel.forward, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
          "asking for shared memory");
    }
    if (!status.ok()) return status;
    if (attributes.ptxVersion >= 90) dependents[type][index].fetch_or(bit, std::memory_order_relaxed);
    prepared[type][index].fetch_or(bit, std::memory_order_release);
  }
  *dependent = (dependents[type][index].load(std::memory_order_relaxed) & bit) != 0;
  return {};
}

Status launch(const void* function, unsigned grid, int warps, int shared_bytes, bool dependent, KernelParams* params,
              cudaStream_t stream, const char* name) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(32, warps);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  void* arguments[] = {params};
  return cuda_status(cudaLaunchKernelExC(&config, function, arguments), name);
}

Status forward(const AttentionParams& params, const Execution& execution) {
  const Gpu* gpu = nullptr;
  Status status = current_gpu(&gpu);
  Plan plan;
  bool dependent = false;
  if (status.ok()) status = make_plan(params, *gpu, &plan);
  if (status.ok()) status = prepare(*plan.kernel, params.dtype, *gpu, &dependent);
  if (!status.ok()) return status;
  KernelParams& p = plan.params;
  p.partial_output = static_cast<float*>(execution.workspace);
  p.partial_state = reinterpret_cast<float2*>(p.partial_output + plan.partial_floats());
  const Kernel& kernel = *plan.kernel;
  const cudaStream_t stream = static_cast<cudaStream_t>(execution.stream);
  status = launch(kernel.forward, plan.grid, kernel.warps, kernel.shared_bytes, dependent, &p, stream, kernel.name);
  if (!status.ok() || !plan.has_parts()) return status;
  const unsigned rows = static_cast<unsigned>(params.batch * params.num_heads * params.q_len);
  return launch(kernel.combine, rows, kernel.combine_warps, 0, dependent, &p, stream, "combining slices of keys");
}

// Many short problems are for kernels that have several of them under way at once on a multiprocessor.
bool many_short(const AttentionParams& params) {
  constexpr int64_t kShortKeys = 256;  // fewer hardly fill a thread block's rings once
  constexpr int64_t kManyProblems = 4;
  const Gpu* gpu = nullptr;
  return params.kv_len < kShortKeys && current_gpu(&gpu).ok() &&
         params.batch * params.kv_num_heads > kManyProblems * gpu->multiprocessors;
}

}  // namespace

Implementation implementation() {
  constexpr uint32_t kLeftToOthers = kFeatureFloat32 | kFeaturePrecise | kFeatureDropout;
  return {"decode",  kAllFeatures & ~kLeftToOthers,
          256,       sm80::implementation().hardware,
          accepts,   workspace_size,
          forward,   describe,
          many_short};
}

}  // namespace ortflash::decode

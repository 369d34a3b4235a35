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

// What a call's flags are set to (part_flags.cuh): as a pair of fp32 a NaN that no arithmetic gives, with a number.
uint64_t next_raised() {
  static std::atomic<uint32_t> calls{0};
  return uint64_t{0x7fa5c3e1} << 32 | calls.fetch_add(1, std::memory_order_relaxed);
}

Status launch(const void* function, unsigned grid, int warps, int shared_bytes, bool dependent, Params* params,
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

// fused: one kernel, whose thread blocks wait for each other's parts; otherwise a second one puts the parts together.
Status run(const AttentionParams& params, const Execution& execution, bool fused) {
  const Gpu* gpu = nullptr;
  Status status = current_gpu(&gpu);
  Plan plan;
  bool dependent = false;
  if (status.ok()) status = make_plan(params, *gpu, &plan);
  if (status.ok()) status = prepare(*plan.kernel, params.dtype, *gpu, &dependent);
  if (!status.ok()) return status;
  Params& p = plan.params;
  plan.place(execution.workspace);
  if (!fused || !plan.has_parts()) p.part_flags = nullptr;
  p.raised = next_raised();
  const Kernel& kernel = *plan.kernel;
  const cudaStream_t stream = static_cast<cudaStream_t>(execution.stream);
  status = launch(kernel.forward, plan.grid, kernel.warps, kernel.shared_bytes, dependent, &p, stream, kernel.name);
  if (!status.ok() || fused || !plan.has_parts()) return status;
  const unsigned rows = static_cast<unsigned>(params.batch * params.num_heads * params.q_len);
  return launch(kernel.combine, rows, kernel.combine_warps, 0, dependent, &p, stream, "combining slices of keys");
}

Status forward(const AttentionParams& params, const Execution& execution) { return run(params, execution, false); }
Status forward_fused(const AttentionParams& params, const Execution& execution) { return run(params, execution, true); }

// Long queries, said here because the dispatcher asks this of every call and a refusal in words takes the host 1 us;
// and many short problems, for kernels that have several of them under way at once on a multiprocessor.
bool left_to_others(const AttentionParams& params) {
  if (params.q_len > kShortQuery) return true;
  constexpr int64_t kShortKeys = 256;  // fewer hardly fill a thread block's rings once
  constexpr int64_t kManyProblems = 4;
  const Gpu* gpu = nullptr;
  return params.kv_len < kShortKeys && current_gpu(&gpu).ok() &&
         params.batch * params.kv_num_heads > kManyProblems * gpu->multiprocessors;
}

Implementation make_implementation(const char* name, decltype(forward)* forward_function,
                                   decltype(left_to_others)* only_by_name) {
  constexpr uint32_t kLeftToOthers = kFeatureFloat32 | kFeaturePrecise | kFeatureDropout;
  return {name,
          kAllFeatures & ~kLeftToOthers,
          256,
          sm80::implementation().hardware,
          accepts,
          workspace_size,
          forward_function,
          describe,
          only_by_name};
}

}  // namespace

Implementation implementation() { return make_implementation("decode", forward, left_to_others); }

Implementation fused_implementation() {
  return make_implementation("decode-fused", forward_fused, [](const AttentionParams&) { return true; });
}

}  // namespace ortflash::decode

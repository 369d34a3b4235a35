#include "implementation.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "../gpu.h"
#include "../status.h"
#include "plan.h"

namespace ortflash::sm90 {
namespace {

Status hardware() {
  const Gpu* gpu = nullptr;
  Status status = current_gpu(&gpu);
  if (!status.ok() || (gpu->major == 9 && gpu->minor == 0)) return status;
  return make_status(StatusCode::kUnsupported, "sm90 runs on Hopper (sm_90) only; %s is sm_%d%d", gpu->name, gpu->major,
                     gpu->minor);
}

Status accepts(const AttentionParams& params) {
  const Gpu* gpu = nullptr;
  const Kernel* kernel = nullptr;
  const Status status = current_gpu(&gpu);
  return status.ok() ? choose_kernel(params, *gpu, &kernel) : status;
}

// Small problems leave these large tiles mostly empty, and a tile walks over all its keys alone.
bool slower_than_others(const AttentionParams& params) {
  if (params.q_len <= 16 || stages_what_others_load(params)) return true;
  return params.q_len <= 64 && params.kv_len <= 128 && std::max(params.head_size, params.v_head_size) <= 64;
}

size_t workspace_size(const AttentionParams&, const Execution&) { return 0; }

void describe(const AttentionParams& params, const Execution&, char* name, size_t capacity) {
  const Gpu* gpu = nullptr;
  const Kernel* kernel = nullptr;
  Status status = current_gpu(&gpu);
  if (status.ok()) status = choose_kernel(params, *gpu, &kernel);
  std::snprintf(name, capacity, "%s", status.ok() ? kernel->name : status.message);
}

// More than 48 KB of shared memory must be asked for, once a kernel and device.
Status prepare(const Kernel& kernel, const Gpu& gpu) {
  static std::atomic<uint64_t> prepared[2][32];  // one bit a device
  const KernelList list = kernel.dtype == DType::kFloat16 ? float16_kernels() : bfloat16_kernels();
  std::atomic<uint64_t>& devices = prepared[kernel.dtype == DType::kFloat16][&kernel - list.first];
  const uint64_t bit = uint64_t{1} << (gpu.device % 64);
  if (gpu.device < 64 && (devices.load(std::memory_order_relaxed) & bit) != 0) return {};
  const Status status = cuda_status(
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
      "asking for shared memory");
  if (status.ok()) devices.fetch_or(bit, std::memory_order_relaxed);
  return status;
}

Status forward(const AttentionParams& params, const Execution& execution) {
  const Gpu* gpu = nullptr;
  const Kernel* kernel = nullptr;
  Status status = current_gpu(&gpu);
  if (status.ok()) status = choose_kernel(params, *gpu, &kernel);
  if (status.ok()) status = prepare(*kernel, *gpu);
  Plan plan;
  if (status.ok()) status = make_plan(params, *kernel, *gpu, &plan);
  if (!status.ok()) return status;
  void* arguments[] = {&plan.maps, &plan.params};
  return cuda_status(cudaLaunchKernel(kernel->function, dim3(plan.grid), dim3(kernel->threads), arguments,
                                      kernel->shared_bytes, static_cast<cudaStream_t>(execution.stream)),
                     kernel->name);
}

}  // namespace

Implementation implementation() {
  constexpr uint32_t kMissing = kFeatureFloat32 | kFeaturePrecise | kFeatureDropout;
  return {"sm90",   kAllFeatures & ~kMissing, 512, hardware, accepts, workspace_size, forward,
          describe, slower_than_others};
}

}  // namespace ortflash::sm90

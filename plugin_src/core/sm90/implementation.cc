#include "implementation.h"

#include <cuda_runtime_api.h>

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
  const Kernel* kernel = nullptr;
  return choose_kernel(params, &kernel);
}

Status accepts_without_terms(const AttentionParams& params) {
  const Kernel* kernel = nullptr;
  const Status status = choose_kernel(params, &kernel);
  if (!status.ok() || (kernel->uses & (kFull | kBanded)) != 0) return status;
  return make_status(StatusCode::kUnsupported, "sm90 takes scales above 0; this call has %g",
                     static_cast<double>(params.scale));
}

size_t workspace_size(const AttentionParams&, const Execution&) { return 0; }

void describe(const AttentionParams& params, const Execution&, char* name, size_t capacity) {
  const Kernel* kernel = nullptr;
  const Status status = choose_kernel(params, &kernel);
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
  if (status.ok()) status = choose_kernel(params, &kernel);
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

constexpr uint32_t kWithoutTerms = kFeatureFloat16 | kFeatureBFloat16 | kFeatureCausal | kFeatureWindow |
                                   kFeatureKeyLengths | kFeatureSinks | kFeatureGroupedHeads | kFeatureSplitHeadSize |
                                   kFeatureLse;
constexpr uint32_t kEverything = kAllFeatures & ~(kFeatureFloat32 | kFeaturePrecise | kFeatureDropout);

// Until the tests have run on a Hopper GPU since the kernels last changed (README.md).
constexpr bool kOnlyByName = true;

Implementation implementation() {
  return {"sm90", kWithoutTerms, 256, hardware, accepts_without_terms, workspace_size, forward, describe, kOnlyByName};
}

Implementation terms_implementation() {
  return {"sm90-terms", kEverything, 256, hardware, accepts, workspace_size, forward, describe, kOnlyByName};
}

}  // namespace ortflash::sm90

#include "implementation.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>

#include "../gpu.h"
#include "../sm80/implementation.h"
#include "../sm80/plan.h"
#include "../status.h"
#include "kernels.h"

namespace ortflash::windows {
namespace {

// Below this many windows, several warps to a window may be faster than one: such calls come here by name only. Timed
// on an H200 from 1,536 windows on.
constexpr int64_t kEnoughWindows = 1024;
constexpr int64_t kFewWindows = 256;
constexpr int64_t kFewParts = 4;  // warps of a thread block, which divide the batch
constexpr int64_t kManyWindows = int64_t{1} << 30;
// A warp gets several windows where the GPU is filled at least so often all the same: what a thread block does first,
// such as fetching the bias, is shared by them.
constexpr int64_t kWaves = 2, kMostWindows = 8;
constexpr int kReservedBytes = 1024;  // of shared memory, which CUDA takes for each thread block

// The first kernel that takes the call, or null.
const Kernel* choose_kernel(const AttentionParams& a) {
  const KernelList kernels = a.dtype == DType::kFloat16 ? float16_kernels() : bfloat16_kernels();
  for (int i = 0; i < kernels.count; ++i) {
    const Kernel& kernel = kernels.first[i];
    if (std::max(a.q_len, a.kv_len) <= kernel.length && std::max(a.head_size, a.v_head_size) <= kernel.columns) {
      return &kernel;
    }
  }
  return nullptr;
}

Status accepts(const AttentionParams& a) {
  const int64_t windows = a.batch * a.num_heads;
  if (choose_kernel(a) != nullptr && windows >= kFewWindows && windows <= kManyWindows) return {};
  return make_status(StatusCode::kUnsupported,
                     "windows takes %lld problems or more of up to 64 queries and keys, head sizes up to 64; this call "
                     "has %lld of %lld queries and %lld keys",
                     static_cast<long long>(kFewWindows), static_cast<long long>(windows),
                     static_cast<long long>(a.q_len), static_cast<long long>(a.kv_len));
}

size_t workspace_size(const AttentionParams&, const Execution&) { return 0; }

void describe(const AttentionParams& params, const Execution&, char* name, size_t capacity) {
  std::snprintf(name, capacity, "%s", choose_kernel(params)->name);
}

Status forward(const AttentionParams& params, const Execution& execution) {
  const Gpu* gpu = nullptr;
  Status status = current_gpu(&gpu);
  if (!status.ok()) return status;
  const Kernel& kernel = *choose_kernel(params);
  KernelParams p = {};
  sm80::fill_params(params, &p);
  p.to_natural = 1.0f;
  p.factor = 1.44269504088896341f;
  // More than 48 KB of shared memory must be asked for, once a kernel and device; asking twice does no harm.
  status = cuda_status(
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
      "asking for shared memory");
  if (!status.ok()) return status;
  const int by_memory = (gpu->shared_bytes + kReservedBytes) / (kernel.shared_bytes + kReservedBytes);
  const int64_t warps = int64_t{1} * gpu->multiprocessors * std::min(kernel.blocks, by_memory) * kernel.warps;
  const int64_t windows = std::clamp<int64_t>(params.batch * params.num_heads / (kWaves * warps), 1, kMostWindows);
  const int64_t parts = (params.batch + kernel.warps * windows - 1) / (kernel.warps * windows);
  void* arguments[] = {&p};
  return cuda_status(
      cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(params.num_heads * parts)), dim3(32, kernel.warps),
                       arguments, kernel.shared_bytes, static_cast<cudaStream_t>(execution.stream)),
      kernel.name);
}

bool slower_than_others(const AttentionParams& a) {
  return a.batch * a.num_heads < kEnoughWindows || a.batch < kFewParts;
}

}  // namespace

Implementation implementation() {
  constexpr uint32_t kLeftToOthers = kFeatureFloat32 | kFeaturePrecise | kFeatureDropout | kFeatureBlockMask;
  return {"windows",
          kAllFeatures & ~kLeftToOthers,
          64,
          sm80::implementation().hardware,
          accepts,
          workspace_size,
          forward,
          describe,
          slower_than_others};
}

}  // namespace ortflash::windows

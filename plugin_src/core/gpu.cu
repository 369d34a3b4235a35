#include <atomic>
#include <cstdio>
#include <mutex>

#include "gpu.h"
#include "status.h"

namespace ortflash {
namespace {

constexpr int kMaxDevices = 64;

struct Known {
  std::once_flag once;
  Gpu gpu = {};
  cudaError_t error = cudaSuccess;
};

void ask(int device, Known* known) {
  Gpu& gpu = known->gpu;
  gpu.device = device;
  cudaDeviceProp properties;
  known->error = cudaGetDeviceProperties(&properties, device);
  if (known->error != cudaSuccess) return;
  gpu.major = properties.major;
  gpu.minor = properties.minor;
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  gpu.l2_bytes = properties.l2CacheSize;
  std::snprintf(gpu.name, sizeof(gpu.name), "%.63s", properties.name);
}

}  // namespace

Status cuda_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return make_status(StatusCode::kDeviceError, "%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

Status current_gpu(const Gpu** gpu) {
  static Known known[kMaxDevices];
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return cuda_status(error, "no usable NVIDIA GPU");
  if (device >= kMaxDevices) {
    return make_status(StatusCode::kUnsupported, "GPU number %d is past the %d that ortflash keeps track of", device,
                       kMaxDevices);
  }
  std::call_once(known[device].once, ask, device, &known[device]);
  if (known[device].error != cudaSuccess) return cuda_status(known[device].error, "reading the GPU's properties");
  *gpu = &known[device].gpu;
  return {};
}

}  // namespace ortflash

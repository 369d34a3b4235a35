#include "onnxruntime/device_memory.h"

#include <cstring>

#include "core/status.h"

#if ORTFLASH_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace ortflash::ort {

size_t element_size(schema::Type type) {
  switch (type) {
    case schema::kTypeInt64:
      return 8;
    case schema::kTypeFloat32:
    case schema::kTypeInt32:
      return 4;
    case schema::kTypeFloat16:
    case schema::kTypeBFloat16:
      return 2;
    case schema::kTypeBool:
      return 1;
    default:
      return 0;
  }
}

Status copy_to_host(const void* source, size_t bytes, void* target) {
#if ORTFLASH_WITH_CUDA
  const cudaError_t error = cudaMemcpy(target, source, bytes, cudaMemcpyDefault);
  if (error == cudaSuccess) return {};
  return make_status(StatusCode::kDeviceError, "a constant input cannot be read from the GPU: %s",
                     cudaGetErrorString(error));
#else
  std::memcpy(target, source, bytes);
  return {};
#endif
}

}  // namespace ortflash::ort

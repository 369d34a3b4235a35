#include "tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "../gpu.h"
#include "../status.h"

namespace ortflash::sm90 {
namespace {

// The driver's function, asked of the driver that is there: nothing links to libcuda.
struct Encoder {
  PFN_cuTensorMapEncodeTiled_v12000 function = nullptr;
  cudaError_t error = cudaSuccess;

  Encoder() {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void* address = nullptr;
    error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &found);
    if (error == cudaSuccess && found != cudaDriverEntryPointSuccess) error = cudaErrorNotSupported;
    function = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(address);
  }
};

}  // namespace

Status encode_map(const MapRequest& r, CUtensorMap* map) {
  static const Encoder encoder;
  if (encoder.error != cudaSuccess) return cuda_status(encoder.error, "asking the driver for cuTensorMapEncodeTiled");
  const auto bytes = [&](int64_t stride, int64_t count) {
    return static_cast<cuuint64_t>(count == 1 ? 16 : stride * r.element_bytes);
  };
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(r.columns), static_cast<cuuint64_t>(r.rows),
                               static_cast<cuuint64_t>(r.heads), static_cast<cuuint64_t>(r.batch)};
  const cuuint64_t strides[3] = {bytes(r.strides.row, r.rows), bytes(r.strides.head, r.heads),
                                 bytes(r.strides.batch, r.batch)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(r.box_columns), static_cast<cuuint32_t>(r.box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result =
      encoder.function(map, r.type, 4, const_cast<void*>(r.base), sizes, strides, box, steps,
                       CU_TENSOR_MAP_INTERLEAVE_NONE, r.swizzle, r.promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return make_status(StatusCode::kDeviceError,
                     "the driver refused a tensor map (error %d) of %lld x %lld x %lld x %lld elements",
                     static_cast<int>(result), static_cast<long long>(r.batch), static_cast<long long>(r.heads),
                     static_cast<long long>(r.rows), static_cast<long long>(r.columns));
}

}  // namespace ortflash::sm90

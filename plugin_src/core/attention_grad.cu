// CUDA's entries for the gradients' dispatcher (implementation_grad.h): the list, and the gradients that are all zero.
#include "gpu.h"
#include "implementation_grad.h"
#include "sm80/backward.h"
#ifdef ORTFLASH_WITH_SM90
#include "sm90/backward.h"
#endif

namespace ortflash {
namespace {

// One thread an element.
template <class Element>
__global__ void write_zeros(GradientView view, int64_t elements) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += step) {
    const int64_t column = i % view.extents[3], row = i / view.extents[3] % view.extents[2];
    const int64_t head = i / view.extents[3] / view.extents[2] % view.extents[1];
    const int64_t batch = i / view.extents[3] / view.extents[2] / view.extents[1];
    static_cast<Element*>(view.data)[batch * view.strides.batch + head * view.strides.head + row * view.strides.row +
                                     column * view.strides.column] = Element{0};
  }
}

}  // namespace

GradImplementationList cuda_grad_implementations() {
  static const GradImplementation implementations[] = {
#ifdef ORTFLASH_WITH_SM90
      sm90::grad_implementation(),
      sm90::masked_grad_implementation(),
#endif
      sm80::grad_implementation(),
  };
  return {implementations, sizeof(implementations) / sizeof(implementations[0])};
}

Status cuda_zero_gradients(const GradientViews& gradients, const Execution& execution) {
  const cudaStream_t stream = static_cast<cudaStream_t>(execution.stream);
  for (int i = 0; i < gradients.count; ++i) {
    const GradientView& view = gradients.view[i];
    const int64_t elements = view.extents[0] * view.extents[1] * view.extents[2] * view.extents[3];
    if (elements == 0) continue;
    const int64_t blocks = (elements + 255) / 256;
    const int grid = static_cast<int>(blocks < 65536 ? blocks : 65536);
    if (view.element_bytes == 4) {
      write_zeros<uint32_t><<<grid, 256, 0, stream>>>(view, elements);
    } else {
      write_zeros<uint16_t><<<grid, 256, 0, stream>>>(view, elements);
    }
    Status status = cuda_status(cudaGetLastError(), "launching the kernel for zero gradients");
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace ortflash

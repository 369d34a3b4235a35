// The gradients' kernels for float16.
#include "backward_table.cuh"

namespace ortflash::sm90 {

BackwardKernelList float16_backward_kernels() { return backward_kernels<__half>(); }

}  // namespace ortflash::sm90

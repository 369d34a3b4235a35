// The gradients' kernels for bfloat16.
#include "backward_table.cuh"

namespace ortflash::sm90 {

BackwardKernelList bfloat16_backward_kernels() { return backward_kernels<__nv_bfloat16>(); }

}  // namespace ortflash::sm90

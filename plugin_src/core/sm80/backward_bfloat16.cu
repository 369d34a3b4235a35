#include "backward_table.cuh"

namespace ortflash::sm80 {

BackwardKernelList bfloat16_backward_kernels() { return half_backward_kernels<Math::kBFloat16>(); }

}  // namespace ortflash::sm80

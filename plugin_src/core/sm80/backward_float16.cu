#include "backward_table.cuh"

namespace ortflash::sm80 {

BackwardKernelList float16_backward_kernels() { return half_backward_kernels<Math::kFloat16>(); }

}  // namespace ortflash::sm80

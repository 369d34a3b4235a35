#include "backward_table.cuh"

namespace ortflash::sm80 {

BackwardKernelList tf32_backward_kernels() { return float_backward_kernels<Math::kTf32>(); }

}  // namespace ortflash::sm80

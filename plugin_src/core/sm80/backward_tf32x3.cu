#include "backward_table.cuh"

namespace ortflash::sm80 {

BackwardKernelList tf32x3_backward_kernels() { return float_backward_kernels<Math::kTf32x3>(); }

}  // namespace ortflash::sm80

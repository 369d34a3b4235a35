#include "kernel_table.cuh"

namespace ortflash::sm80 {

KernelList tf32x3_kernels() { return float_kernels<Math::kTf32x3>(); }

}  // namespace ortflash::sm80

#include "kernel_table.cuh"

namespace ortflash::sm80 {

KernelList tf32_kernels() { return float_kernels<Math::kTf32>(); }

}  // namespace ortflash::sm80

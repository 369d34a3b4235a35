#include "kernel_table.cuh"

namespace ortflash::sm80 {

KernelList tf32_dropout_kernels() { return float_dropout_kernels<Math::kTf32>(); }

}  // namespace ortflash::sm80

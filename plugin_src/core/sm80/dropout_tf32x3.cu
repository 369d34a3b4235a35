#include "kernel_table.cuh"

namespace ortflash::sm80 {

KernelList tf32x3_dropout_kernels() { return float_dropout_kernels<Math::kTf32x3>(); }

}  // namespace ortflash::sm80

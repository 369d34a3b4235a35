#include "kernel_table.cuh"

namespace ortflash::sm80 {

KernelList bfloat16_dropout_kernels() { return half_dropout_kernels<Math::kBFloat16>(); }

}  // namespace ortflash::sm80

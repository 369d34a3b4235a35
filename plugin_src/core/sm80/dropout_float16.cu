#include "kernel_table.cuh"

namespace ortflash::sm80 {

KernelList float16_dropout_kernels() { return half_dropout_kernels<Math::kFloat16>(); }

}  // namespace ortflash::sm80

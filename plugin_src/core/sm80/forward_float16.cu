#include "kernel_table.cuh"

namespace ortflash::sm80 {

KernelList float16_kernels() { return half_kernels<Math::kFloat16>(); }

}  // namespace ortflash::sm80

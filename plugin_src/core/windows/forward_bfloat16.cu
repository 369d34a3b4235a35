#include "kernel_table.cuh"

namespace ortflash::windows {

KernelList bfloat16_kernels() { return kernels<sm80::Math::kBFloat16>(); }

}  // namespace ortflash::windows

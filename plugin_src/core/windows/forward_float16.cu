#include "kernel_table.cuh"

namespace ortflash::windows {

KernelList float16_kernels() { return kernels<sm80::Math::kFloat16>(); }

}  // namespace ortflash::windows

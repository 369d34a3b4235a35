#include "kernel_table.cuh"

namespace ortflash::decode {

KernelList float16_kernels() { return kernels<sm80::Math::kFloat16>(); }

}  // namespace ortflash::decode

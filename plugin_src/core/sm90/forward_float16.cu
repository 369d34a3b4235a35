// The kernels for float16.
#include "kernel_table.cuh"

namespace ortflash::sm90 {

KernelList float16_kernels() { return kernels<__half>(DType::kFloat16); }

}  // namespace ortflash::sm90

// The kernels for bfloat16.
#include "kernel_table.cuh"

namespace ortflash::sm90 {

KernelList bfloat16_kernels() { return kernels<__nv_bfloat16>(DType::kBFloat16); }

}  // namespace ortflash::sm90

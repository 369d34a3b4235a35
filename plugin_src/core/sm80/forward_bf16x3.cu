#include "kernel_table.cuh"

namespace ortflash::sm80 {

KernelList bf16x3_kernels() { return three_piece_kernels<Math::kBf16x3>(); }

}  // namespace ortflash::sm80

#include "kernel_table.cuh"

namespace ortflash::sm80 {

KernelList bf16x2_kernels() { return two_piece_kernels<Math::kBf16x2>(); }

}  // namespace ortflash::sm80

// The CPU kernel for AVX2, FMA and F16C; compiled with -mavx2 -mfma -mf16c.
#include "vec_avx2.h"
// The vector type has to be known first.
#include "tile_attention.h"
#include "tile_gradient.h"

namespace ortflash::cpu {

TileKernel avx2_kernel() { return {kLanes, kMaxRows, scratch_bytes, run_item, combine_item}; }

GradKernel avx2_grad_kernel() { return kGradKernel; }

}  // namespace ortflash::cpu

// The CPU kernel for AVX-512 F, BW, DQ and VL; compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c.
#include "vec_avx512.h"
// The vector type has to be known first.
#include "tile_attention.h"
#include "tile_gradient.h"

namespace ortflash::cpu {

TileKernel avx512_kernel() { return {kLanes, kMaxRows, scratch_bytes, run_item, combine_item}; }

GradKernel avx512_grad_kernel() { return kGradKernel; }

}  // namespace ortflash::cpu

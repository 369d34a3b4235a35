// The CPU kernel in plain C++; compiled with no flags of its own.
#include "vec_portable.h"
// The vector type has to be known first.
#include "tile_attention.h"
#include "tile_gradient.h"

namespace ortflash::cpu {

TileKernel portable_kernel() { return {kLanes, kMaxRows, scratch_bytes, run_item, combine_item}; }

GradKernel portable_grad_kernel() { return kGradKernel; }

}  // namespace ortflash::cpu

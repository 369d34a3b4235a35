// What one instruction set's translation unit offers for the gradients: the steps of a call, in the order in which they
// run. All items of a step may run at once; a step begins when the one before it is done.
#pragma once

#include <cstddef>
#include <cstdint>

#include "grad_plan.h"

namespace ortflash::cpu {

// `index` counts the step's items; `scratch` has scratch_bytes(), aligned to 256.
struct GradKernel {
  size_t (*scratch_bytes)(const AttentionGradParams& params);  // a multiple of 256

  // batch * num_heads * row_tiles items: delta and row_factor of one tile of rows.
  void (*prepare)(const GradCall& call, int64_t index, void* scratch);
  // batch * kv_num_heads * splits items: d_key, d_value of the split's keys, and its d_query.
  void (*accumulate)(const GradCall& call, int64_t index, void* scratch);
  // batch * num_heads * row_tiles items: d_query from those of the splits.
  void (*finish_query)(const GradCall& call, int64_t index, void* scratch);
  // plan.bias_items() items: d_attn_bias.
  void (*bias)(const GradCall& call, int64_t index, void* scratch);
};

GradKernel portable_grad_kernel();
#ifdef ORTFLASH_CPU_X86
GradKernel avx2_grad_kernel();
GradKernel avx512_grad_kernel();
#endif

}  // namespace ortflash::cpu

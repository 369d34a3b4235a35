// From AttentionParams to a launch: kernel, tensor maps, parameters, grid.
#pragma once

#include "../attention.h"
#include "../gpu.h"
#include "forward_params.h"
#include "kernel_table.h"

namespace ortflash::sm90 {

// The kernel for a call, or the reason why these kernels don't take it. Looks at pointers only for their alignment.
Status choose_kernel(const AttentionParams& params, const Gpu& gpu, const Kernel** kernel);

// Whether bias or mask must be fetched element by element here (TermSource::kElements), where sm80 loads them in fours.
bool stages_what_others_load(const AttentionParams& params);

struct Plan {
  ForwardMaps maps;
  ForwardParams params;
  int grid;
};

// For a call that `kernel` takes.
Status make_plan(const AttentionParams& params, const Kernel& kernel, const Gpu& gpu, Plan* plan);

}  // namespace ortflash::sm90

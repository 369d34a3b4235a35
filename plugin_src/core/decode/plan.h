// What a call will launch: the kernel, its parameters, and how the keys are sliced.
#pragma once

#include "../attention.h"
#include "../gpu.h"
#include "kernels.h"
#include "params.h"

namespace ortflash::decode {

constexpr int kShortQuery = 16;  // past it the queries of one head fill a tile of the other kernels

struct Plan {
  const Kernel* kernel;
  Params params;  // what lies in the workspace is still null
  unsigned grid;

  // Whether a batch element's keys may lie in more than one slice, which leaves partial results.
  bool has_parts() const { return params.key_splits > 1 && params.kv_len > kernel->unit_keys; }
  size_t workspace_bytes() const;
  // Lets params point to their places in it.
  void place(void* workspace);
};

// Chooses for valid params. Of pointers only the alignment is read, and it changes neither the choice nor the
// workspace.
Status make_plan(const AttentionParams& params, const Gpu& gpu, Plan* plan);

// The kernels for fp16 or bf16.
KernelList kernels_for(DType dtype);

}  // namespace ortflash::decode

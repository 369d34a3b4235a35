// What a call will launch: the kernel, its parameters, and how the keys are sliced.
#pragma once

#include "../attention.h"
#include "../gpu.h"
#include "../kernel_params.h"
#include "kernels.h"

namespace ortflash::decode {

struct Plan {
  const Kernel* kernel;
  KernelParams params;  // partial_output and partial_state are still null
  unsigned grid;

  // Whether a batch element's keys may lie in more than one slice, which leaves partial results.
  bool has_parts() const { return params.key_splits > 1 && params.kv_len > kernel->unit_keys; }
  int64_t partial_rows() const;
  int64_t partial_floats() const;  // of partial_output
  size_t workspace_bytes() const;
};

// Chooses for valid params. Of pointers only the alignment is read, and it changes neither the choice nor the
// workspace.
Status make_plan(const AttentionParams& params, const Gpu& gpu, Plan* plan);

// The kernels for fp16 or bf16.
KernelList kernels_for(DType dtype);

}  // namespace ortflash::decode

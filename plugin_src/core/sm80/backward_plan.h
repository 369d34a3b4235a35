// What a call of the backward will launch.
#pragma once

#include "../attention_grad.h"
#include "../gpu.h"
#include "backward_kernels.h"

namespace ortflash::sm80 {

struct BackwardPlan {
  BackwardKernelList kernels;
  const BackwardKernel* keys;     // dK and dV
  const BackwardKernel* queries;  // dQ
  const BackwardKernel* bias;     // d_bias; null where it isn't asked for
  BackwardParams params;          // params.rows is still null
  int64_t rows;                   // batch * num_heads * q_len

  size_t workspace_bytes() const { return 3 * rows * sizeof(float); }
};

// Chooses for valid params. Reads pointers only for their alignment, and not for anything that changes the workspace.
Status make_backward_plan(const AttentionGradParams& params, const Gpu& gpu, BackwardPlan* plan);

}  // namespace ortflash::sm80

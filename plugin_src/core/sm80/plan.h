// What a call will launch: the kernel, its parameters, and how the keys are split.
#pragma once

#include "../attention.h"
#include "../gpu.h"
#include "../kernel_params.h"
#include "kernels.h"
#include "pieces.h"

namespace ortflash::sm80 {

// A partial row is a row of the output and its running maximum and sum, in fp32.
inline size_t partial_bytes(int64_t rows, int64_t v_head_size) {
  return static_cast<size_t>(rows * (v_head_size + 2)) * sizeof(float);
}

struct Plan {
  const Kernel* kernel;
  // partial_output and partial_state are still null, and where operands are cut, query, key and value aren't theirs.
  KernelParams params;
  PieceLayout pieces;  // count is 0 where the kernel takes the operands as they are
  unsigned grid;

  // Rows of partial results; 0 where the keys aren't split.
  int64_t partial_rows() const {
    return params.key_splits > 1 ? int64_t{1} * params.key_splits * params.batch * params.num_heads * params.q_len : 0;
  }
  // Never both.
  size_t workspace_bytes() const { return partial_bytes(partial_rows(), params.v_head_size) + pieces.bytes; }
};

// Chooses for valid params. Reads pointers only for their alignment, and not for anything that changes the workspace.
Status make_plan(const AttentionParams& params, const Gpu& gpu, Plan* plan);

// Whether KernelParams can hold the call's sizes.
Status check_sizes(const AttentionParams& params);

// What follows from the call alone: tensors, strides, sizes, flags. For all kernels that read KernelParams.
void fill_params(const AttentionParams& params, KernelParams* kernel_params);

}  // namespace ortflash::sm80

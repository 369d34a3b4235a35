// From the tensors of a FlashAttentionGrad node to the core's parameters: the forward's checks, and that what the
// forward gave fits its inputs. Knows no framework.
#pragma once

#include "adapter/call.h"
#include "core/attention_grad.h"

namespace ortflash {

// The forward's input that the gradient's input at `index` is; `index` is none of output, softmax_lse and d_output.
constexpr schema::InputIndex forward_input(size_t index) {
  constexpr size_t kOwn = schema::grad::kInputDOutput - schema::grad::kInputOutput + 1;
  return static_cast<schema::InputIndex>(index < schema::grad::kInputOutput ? index : index - kOwn);
}

// Checks `inputs`, in the gradient's order, and fills everything but the gradients' pointers: those of query, key and
// value have the layout of their inputs, that of the bias is contiguous with the bias's shape.
Status make_grad_call(const Attributes& attributes, const Tensor (&inputs)[schema::grad::kInputCount],
                      AttentionGradParams* params);

}  // namespace ortflash

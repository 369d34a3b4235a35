// Checks sizes, strides, pointers and attributes of a call before anything is computed or written.
#pragma once

#include "attention.h"
#include "attention_grad.h"

namespace ortflash {

// kOk, or kInvalidArgument with one sentence that names the input and the sizes that disagree.
// Pointers are looked at only where `with_pointers` is set: supports() is asked before tensors exist.
Status validate(const AttentionParams& params, bool with_pointers);
Status validate(const AttentionGradParams& params, bool with_pointers);

}  // namespace ortflash

// The Hopper kernels as the dispatcher sees them: fp16 and bf16 on sm_90, head sizes that are multiples of 8 up to 256.
#pragma once

#include "../implementation.h"

namespace ortflash::sm90 {

// Attention without terms on the scores: causal, windows, key_lengths, sinks, grouped heads, softmax_lse.
Implementation implementation();

// Everything: softcap, attn_bias, attn_mask and block_mask as well. By name only, until its kernels for bias, mask and
// key terms have passed the tests on a GPU in their present form (README.md).
Implementation terms_implementation();

}  // namespace ortflash::sm90

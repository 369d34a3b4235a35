// The decoding kernels as the dispatcher sees them: few rows of queries to a key/value head, any number of keys; fp16
// and bf16, every feature but dropout, every NVIDIA GPU from sm_80 on.
#pragma once

#include "../implementation.h"

namespace ortflash::decode {

Implementation implementation();

// The same as one kernel, in which thread blocks wait for each other. Only by name until it has run on a GPU.
Implementation fused_implementation();

// workspace_bound() of attention.h for these kernels alone (plan.cc).
size_t workspace_bound(const AttentionParams& smallest, const AttentionParams& largest);

}  // namespace ortflash::decode

// The mma.sync kernels as the dispatcher sees them: every feature, every NVIDIA GPU from sm_80 on.
#pragma once

#include "../implementation.h"

namespace ortflash::sm80 {

Implementation implementation();

// The same with dropout, and for calls that have it only.
Implementation dropout_implementation();

// As in attention.h, for these kernels.
size_t workspace_bound(const AttentionParams& smallest, const AttentionParams& largest);

}  // namespace ortflash::sm80

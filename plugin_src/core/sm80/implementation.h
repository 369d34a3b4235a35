// The mma.sync kernels as the dispatcher sees them: every feature, every NVIDIA GPU from sm_80 on.
#pragma once

#include "../implementation.h"

namespace ortflash::sm80 {

Implementation implementation();

// As in attention.h, for these kernels.
size_t workspace_bound(const AttentionParams& smallest, const AttentionParams& largest);

}  // namespace ortflash::sm80

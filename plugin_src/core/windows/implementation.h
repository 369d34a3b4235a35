// The kernels for small windows as the dispatcher sees them: hundreds of problems or more of up to 64 queries and keys,
// heads up to 64; fp16 and bf16, every feature but block_mask and dropout, every NVIDIA GPU from sm_80 on.
#pragma once

#include "../implementation.h"

namespace ortflash::windows {

Implementation implementation();

}  // namespace ortflash::windows

// The mma.sync kernels as the dispatcher sees them: every feature, every NVIDIA GPU from sm_80 on.
#pragma once

#include "../implementation.h"

namespace ortflash::sm80 {

Implementation implementation();

}  // namespace ortflash::sm80

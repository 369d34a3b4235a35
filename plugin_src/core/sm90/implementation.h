// The Hopper kernels as the dispatcher sees them: fp16 and bf16 on sm_90, head sizes that are multiples of 8 up to 256,
// or 512 without terms.
#pragma once

#include "../implementation.h"

namespace ortflash::sm90 {

Implementation implementation();

}  // namespace ortflash::sm90

// The Hopper kernels of the gradients as the dispatcher sees them.
#pragma once

#include "../implementation_grad.h"

namespace ortflash::sm90 {

// fp16 and bf16, head sizes up to 128 and D == E; causal, window, grouped heads. dQ is added up in whatever order the
// thread blocks finish, so it isn't deterministic.
GradImplementation grad_implementation();

// The same with key_lengths, block masks of blocks from 128 on, and masks that all rows of a head share. Only by name
// until the tests have run on a Hopper GPU.
GradImplementation masked_grad_implementation();

}  // namespace ortflash::sm90

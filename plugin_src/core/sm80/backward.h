// The mma.sync kernels of the gradients as the dispatcher sees them: every feature, every NVIDIA GPU from sm_80 on, the
// same bits in every run.
#pragma once

#include "../implementation_grad.h"

namespace ortflash::sm80 {

GradImplementation grad_implementation();

}  // namespace ortflash::sm80

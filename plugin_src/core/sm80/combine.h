// The kernel that puts the partial results of split keys together.
#pragma once

#include "../attention.h"

namespace ortflash::sm80 {

// void(KernelParams), one thread block for each of the B*N*S rows.
const void* combine_kernel_for(DType dtype);

}  // namespace ortflash::sm80

// What the decoding kernels read: KernelParams, and the flags of the parts where the first kernel is the only one.
#pragma once

#include <cstdint>

#include "../kernel_params.h"

namespace ortflash::decode {

struct Params : KernelParams {
  // One for each part that a slice may leave (part_flags.cuh), or null: a second kernel puts the parts together.
  uint64_t* part_flags;
  uint64_t raised;  // what this call's flags are set to
};

}  // namespace ortflash::decode

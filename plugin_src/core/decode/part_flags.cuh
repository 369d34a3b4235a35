// How thread blocks tell each other that a part is written, so that the one that has a row's last keys can add up the
// parts, and no second kernel is needed.
//
// A flag is raised by setting it to a number that no other call of the process uses, and that isn't a pair of fp32
// which any kernel would leave behind; so it doesn't matter what the workspace held before. Whoever waited for a flag
// takes it down, so that the same call can run again in a CUDA graph. Thread blocks wait only for those with lower
// numbers, which start earlier.
#pragma once

#include <cstdint>

#include "params.h"

namespace ortflash::decode {

__device__ __forceinline__ uint64_t* part_flag(const Params& p, int slice, int kv_head, int row_tile,
                                               bool begins_here) {
  const int64_t kv_heads = p.num_heads / p.group;
  return p.part_flags + ((slice * kv_heads + kv_head) * p.row_tiles + row_tile) * 2 + begins_here;
}

// By one thread, after a barrier behind all threads' stores of the part.
__device__ __forceinline__ void raise_flag(uint64_t* flag, uint64_t raised) {
  asm volatile("fence.acq_rel.gpu;\nst.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(raised) : "memory");
}

// By one thread, before a barrier in front of all threads' loads of the part.
__device__ __forceinline__ void await_flag(uint64_t* flag, uint64_t raised) {
  uint64_t value;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  } while (value != raised);
  *flag = 0;
}

}  // namespace ortflash::decode

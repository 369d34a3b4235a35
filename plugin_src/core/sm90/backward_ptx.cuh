// PTX instructions that only the gradients need, one function each; beside ptx.cuh.
#pragma once

#include "ptx.cuh"

#ifndef ORTFLASH_EMULATED  // emulator.h has them all

namespace ortflash::sm90 {

// Adjacent bytes, global -> shared; both ends and the number are multiples of 16.
__device__ __forceinline__ void copy_line(void* destination, const void* source, int bytes, Barrier& full) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   smem_address(destination)),
               "l"(source), "r"(bytes), "r"(smem_address(&full))
               : "memory");
}

// destination[i] += source[i] in global memory, fp32, from shared memory.
__device__ __forceinline__ void add_line(float* destination, const void* source, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination),
               "r"(smem_address(source)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until the sources of all committed groups have been read; until everything is done.
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace ortflash::sm90

#endif  // ORTFLASH_EMULATED

// Programmatic dependent launch: the next kernel's thread blocks are there before this one ends, and wait. Nothing on
// GPUs before sm_90, where the next kernel starts after this one anyway.
#pragma once

namespace ortflash::decode {

// The next kernel may start as soon as all thread blocks have come here.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until the kernel before has ended and what it wrote can be read.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace ortflash::decode

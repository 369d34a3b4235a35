// Makes a row of the kernel table (kernels.h) from a Config.
#pragma once

#include "forward.cuh"
#include "kernels.h"

namespace ortflash::sm80 {

template <class C>
Kernel make_kernel(const char* name) {
  return {reinterpret_cast<const void*>(&forward_kernel<C>),
          name,
          C::STREAM_Q ? 512 : C::COLUMNS,
          C::COLUMNS,
          C::BLOCK_Q,
          C::BLOCK_KV,
          C::THREADS,
          C::SMEM,
          C::GENERAL,
          C::BLOCK_Q < 64 ? C::BLOCK_Q : 0};
}

// fp16 and bf16. Config<math, columns, general, block_q, block_kv, warps, panel, stream_q, q_in_registers, min_blocks>
template <Math MATH>
KernelList half_kernels() {
  static const Kernel kernels[] = {
      make_kernel<Config<MATH, 64, false, 128, 128, 4, 64, false, false, 2>>("sm80-128x128-d64"),
      make_kernel<Config<MATH, 96, false, 128, 48, 4, 96, false, false, 2>>("sm80-128x48-d96"),
      make_kernel<Config<MATH, 128, false, 128, 64, 4, 128, false, false, 2>>("sm80-128x64-d128"),
      make_kernel<Config<MATH, 256, false, 128, 64, 8, 128, false, false, 1>>("sm80-128x64-d256"),
      make_kernel<Config<MATH, 64, true, 32, 32, 2, 64, false, true, 8>>("sm80-32x32-d64-general"),
      make_kernel<Config<MATH, 64, true, 64, 64, 4, 64, false, true, 3>>("sm80-64x64-d64-general"),
      make_kernel<Config<MATH, 128, true, 64, 64, 4, 128, false, false, 2>>("sm80-64x64-d128-general"),
      make_kernel<Config<MATH, 256, true, 64, 32, 4, 128, false, false, 1>>("sm80-64x32-d256-general"),
      make_kernel<Config<MATH, 256, true, 64, 32, 4, 128, true, false, 1>>("sm80-64x32-d512-general"),
  };
  return {kernels, sizeof(kernels) / sizeof(kernels[0])};
}

// fp32: 32 keys a block, since elements are twice as wide and fragments are converted in registers.
template <Math MATH>
KernelList float_kernels() {
  static const Kernel kernels[] = {
      make_kernel<Config<MATH, 64, true, 64, 32, 4, 64, false, false, 2>>("sm80-64x32-d64-general"),
      make_kernel<Config<MATH, 128, true, 64, 32, 4, 64, false, false, 1>>("sm80-64x32-d128-general"),
      make_kernel<Config<MATH, 256, true, 64, 16, 4, 64, false, false, 1>>("sm80-64x16-d256-general"),
      make_kernel<Config<MATH, 256, true, 64, 16, 4, 64, true, false, 1>>("sm80-64x16-d512-general"),
  };
  return {kernels, sizeof(kernels) / sizeof(kernels[0])};
}

}  // namespace ortflash::sm80

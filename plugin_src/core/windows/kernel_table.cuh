// Makes a row of the kernel table (kernels.h) from a Config.
#pragma once

#include "forward.cuh"
#include "kernels.h"

namespace ortflash::windows {

template <class C>
Kernel make_kernel(const char* name) {
  return {
      reinterpret_cast<const void*>(&forward_kernel<C>), name, C::KEYS, C::COLUMNS, C::WARPS, C::MIN_BLOCKS, C::SMEM};
}

// Config<math, columns, keys, warps, blocks of a multiprocessor>. For a call the first row that takes it is
// used.
template <sm80::Math MATH>
KernelList kernels() {
  static const Kernel kernels[] = {
      make_kernel<Config<MATH, 32, 32, 4, 4>>("windows-32-d32"),
      make_kernel<Config<MATH, 32, 64, 4, 4>>("windows-64-d32"),
      make_kernel<Config<MATH, 64, 32, 4, 4>>("windows-32-d64"),
      make_kernel<Config<MATH, 64, 64, 4, 2>>("windows-64-d64"),
  };
  return {kernels, sizeof(kernels) / sizeof(kernels[0])};
}

}  // namespace ortflash::windows

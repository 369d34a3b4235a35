// Makes a row of the kernel table (kernels.h) from a Config.
#pragma once

#include "combine.cuh"
#include "forward.cuh"
#include "kernels.h"

namespace ortflash::decode {

// tiles: of queries of one key/value head. Two read all keys twice, the second time most often from L2; what needs more
// is left to others.
template <class C>
Kernel make_kernel(const char* name, int tiles = 1) {
  return {reinterpret_cast<const void*>(&forward_kernel<C>),
          reinterpret_cast<const void*>(&combine_kernel<C>),
          name,
          C::COLUMNS,
          C::ROWS,
          tiles * C::ROWS,
          C::WARPS,
          kCombineWarps,
          C::UNIT_KEYS,
          C::MIN_BLOCKS,
          C::SMEM};
}

// Config<math, columns, row tiles, warps, stages, blocks of a multiprocessor>. For a call the first row that takes it
// is used. Bounds: 99 KB of shared memory to a thread block on sm_86, sm_89 and sm_120; 255 registers. Figures: H200,
// 32 / 8 heads of 128, one query, microseconds at B 8, T 8192 and B 64, T 8192, 2026-11-29.
template <sm80::Math MATH>
KernelList kernels() {
  static const Kernel kernels[] = {
      make_kernel<Config<MATH, 64, 1, 8, 6, 1>>("decode-16x128-d64"),
      make_kernel<Config<MATH, 64, 1, 4, 6, 2>>("decode-16x64-d64"),
      make_kernel<Config<MATH, 64, 2, 4, 5, 2>>("decode-32x64-d64", 2),
      // 70.3 and 489; 2 warps of 3 stages, 4 blocks: 74.4 and 497; 2 warps of 6 stages, 2 blocks: 87.6 and 550
      make_kernel<Config<MATH, 128, 1, 8, 3, 1>>("decode-16x128-d128"),
      // 74.1 and 492, for GPUs with less shared memory
      make_kernel<Config<MATH, 128, 1, 4, 3, 2>>("decode-16x64-d128"),
      make_kernel<Config<MATH, 128, 2, 4, 3, 2>>("decode-32x64-d128", 2),
      make_kernel<Config<MATH, 128, 2, 2, 5, 2>>("decode-32x32-d128", 2),  // for GPUs with less shared memory
      make_kernel<Config<MATH, 256, 1, 2, 2, 3>>("decode-16x32-d256", 2),
  };
  return {kernels, sizeof(kernels) / sizeof(kernels[0])};
}

}  // namespace ortflash::decode

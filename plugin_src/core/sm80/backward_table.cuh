// Which kernels of the backward are built for a type. For a call the first row that takes it is used.
#pragma once

#include "backward.cuh"
#include "backward_bias.cuh"
#include "backward_kernels.h"
#include "backward_rows.cuh"

namespace ortflash::sm80 {

template <class C>
BackwardKernel make_backward_kernel() {
  const void* function = nullptr;
  if constexpr (C::GRADIENT == Gradient::kBias) {
    function = reinterpret_cast<const void*>(&bias_gradient_kernel<C>);
  } else {
    function = reinterpret_cast<const void*>(&backward_kernel<C>);
  }
  return {function,    C::GRADIENT,           C::ALL,     C::COLUMNS, C::BLOCK_Q,
          C::BLOCK_KV, C::COLUMNS / C::CHUNK, C::THREADS, C::SMEM};
}

template <Math MATH>
BackwardKernelList with_rows(const BackwardKernel* kernels, int count) {
  return {kernels, count, reinterpret_cast<const void*>(&row_statistics_kernel<MATH>),
          reinterpret_cast<const void*>(&sinks_gradient_kernel)};
}

// BackwardConfig<math, gradient, all, columns, chunk, own rows, other rows, min_blocks>. Bounds: 255 registers a
// thread, and 99 KB of shared memory on sm_86, sm_89 and sm_120.
template <Math MATH>
BackwardKernelList half_backward_kernels() {
  static const BackwardKernel kernels[] = {
      make_backward_kernel<BackwardConfig<MATH, Gradient::kKeys, false, 64, 64, 64, 64, 3>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kKeys, false, 128, 128, 64, 64, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kKeys, true, 64, 64, 64, 64, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kKeys, true, 128, 128, 64, 32, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kKeys, true, 256, 128, 64, 32, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kQueries, false, 64, 64, 64, 64, 3>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kQueries, false, 128, 128, 64, 64, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kQueries, true, 64, 64, 64, 64, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kQueries, true, 128, 128, 64, 64, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kQueries, true, 256, 256, 64, 32, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kBias, true, 64, 64, 64, 64, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kBias, true, 128, 128, 64, 64, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kBias, true, 256, 256, 64, 32, 2>>(),
  };
  return with_rows<MATH>(kernels, sizeof(kernels) / sizeof(kernels[0]));
}

// fp32: fewer rows, since elements are twice as wide and operands are converted in registers.
template <Math MATH>
BackwardKernelList float_backward_kernels() {
  constexpr int kOthers = MATH == Math::kTf32x3 ? 16 : 32;  // split operands take twice the registers: 32 spill
  static const BackwardKernel kernels[] = {
      make_backward_kernel<BackwardConfig<MATH, Gradient::kKeys, true, 64, 64, 64, kOthers, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kKeys, true, 128, 128, 64, kOthers, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kKeys, true, 256, 128, 32, 16, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kQueries, true, 64, 64, 64, kOthers, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kQueries, true, 128, 128, 64, kOthers, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kQueries, true, 256, 256, 32, 16, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kBias, true, 64, 64, 64, kOthers, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kBias, true, 128, 128, 64, kOthers, 2>>(),
      make_backward_kernel<BackwardConfig<MATH, Gradient::kBias, true, 256, 256, 32, 16, 2>>(),
  };
  return with_rows<MATH>(kernels, sizeof(kernels) / sizeof(kernels[0]));
}

}  // namespace ortflash::sm80

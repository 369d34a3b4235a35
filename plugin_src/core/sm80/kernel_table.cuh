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
          !C::SUM_BY_PRODUCT,
          C::TERMS,
          C::ALL,
          C::BLOCK_Q < 64 ? C::BLOCK_Q : 0};
}

// Config<math, columns, level, block_q, block_kv, warps, panel, stream_q, q_in_registers, min_blocks>. For a call the
// first row that takes it is used. Bounds: 255 registers a thread; 99 KB of shared memory on sm_86, sm_89 and sm_120
// (163 KB on sm_80, 227 KB on sm_90). Figures: H200, fp16, S 8192 full or S 4096 with a bias (1,1,S,S), TFLOP/s,
// 2026-11-29.
template <Math MATH>
KernelList half_kernels() {
  static const Kernel kernels[] = {
      // 313
      make_kernel<Config<MATH, 64, Level::kBare, 128, 128, 4, 64, false, false, 2>>("sm80-128x128-d64-bare"),
      // 304; 64 keys 280, 96 keys 303, 192 rows 286
      make_kernel<Config<MATH, 64, Level::kPlain, 128, 128, 4, 64, false, false, 2>>("sm80-128x128-d64"),
      // 48 keys: 64 spill
      make_kernel<Config<MATH, 96, Level::kPlain, 128, 48, 4, 96, false, false, 2>>("sm80-128x48-d96"),
      // 368
      make_kernel<Config<MATH, 128, Level::kBare, 128, 64, 4, 128, false, false, 2>>("sm80-128x64-d128-bare"),
      // 356 in the same run; 48 keys 354, 32 keys 330, 64 rows 310, 256 rows with 8 warps 276
      make_kernel<Config<MATH, 128, Level::kPlain, 128, 64, 4, 128, false, false, 2>>("sm80-128x64-d128"),
      // two panels: one of 256 columns leaves no room beside Q on sm_86
      make_kernel<Config<MATH, 256, Level::kPlain, 128, 64, 8, 128, false, false, 1>>("sm80-128x64-d256"),
      // 192; 64 keys 181, 128 rows 147. 64 rows, since short sequences with a bias are common (windows, images)
      make_kernel<Config<MATH, 64, Level::kTerms, 64, 128, 4, 64, false, false, 2>>("sm80-64x128-d64-terms"),
      // 234; 128 rows by 32 keys 196
      make_kernel<Config<MATH, 128, Level::kTerms, 64, 64, 4, 128, false, false, 2>>("sm80-64x64-d128-terms"),
      // 46,080 problems of 25 rows: 0.6 ms; with 128 rows 2.4 ms
      make_kernel<Config<MATH, 64, Level::kAll, 32, 32, 2, 64, false, true, 8>>("sm80-32x32-d64-all"),
      make_kernel<Config<MATH, 64, Level::kAll, 64, 64, 4, 64, false, true, 3>>("sm80-64x64-d64-all"),
      make_kernel<Config<MATH, 128, Level::kAll, 64, 64, 4, 128, false, false, 2>>("sm80-64x64-d128-all"),
      make_kernel<Config<MATH, 256, Level::kAll, 64, 32, 4, 128, false, false, 1>>("sm80-64x32-d256-all"),
      make_kernel<Config<MATH, 256, Level::kAll, 64, 32, 4, 128, true, false, 1>>("sm80-64x32-d512-all"),
  };
  return {kernels, sizeof(kernels) / sizeof(kernels[0])};
}

// fp32 in two pieces (pieces.cu): three products instead of one, so that a tile's loads and exponentials weigh less.
// Figures as above, but fp32 and S 4096; in this and the next list with the time of cutting.
template <Math MATH>
KernelList two_piece_kernels() {
  static const Kernel kernels[] = {
      // 132; 32 keys 124, 64 rows by 64 keys 123, by 128 keys 121
      make_kernel<Config<MATH, 64, Level::kPlain, 128, 64, 4, 64, false, false, 2>>("sm80-128x64-d64-bf16x2"),
      // 137; 64 rows by 64 keys 126, by 32 keys 124, 8 warps of 16 rows 123
      make_kernel<Config<MATH, 128, Level::kPlain, 128, 32, 4, 128, false, false, 2>>("sm80-128x32-d128-bf16x2"),
      // 97 with a bias (1,N,S,S); 32 keys 94
      make_kernel<Config<MATH, 64, Level::kTerms, 64, 64, 4, 64, false, false, 2>>("sm80-64x64-d64-bf16x2-terms"),
      // 118; 32 keys 105
      make_kernel<Config<MATH, 128, Level::kTerms, 64, 64, 4, 128, false, false, 2>>("sm80-64x64-d128-bf16x2-terms"),
      // 71 without a bias
      make_kernel<Config<MATH, 64, Level::kAll, 64, 64, 4, 64, false, false, 2>>("sm80-64x64-d64-bf16x2-all"),
      make_kernel<Config<MATH, 128, Level::kAll, 64, 32, 4, 128, false, false, 2>>("sm80-64x32-d128-bf16x2-all"),
      make_kernel<Config<MATH, 256, Level::kAll, 64, 32, 4, 128, false, false, 1>>("sm80-64x32-d256-bf16x2-all"),
  };
  return {kernels, sizeof(kernels) / sizeof(kernels[0])};
}

// fp32 in three pieces: six products.
template <Math MATH>
KernelList three_piece_kernels() {
  static const Kernel kernels[] = {
      // 64; 64 keys and two thread blocks 65, 128 rows 65
      make_kernel<Config<MATH, 64, Level::kPlain, 64, 32, 4, 64, false, false, 3>>("sm80-64x32-d64-bf16x3"),
      // 61; 128 rows and 8 warps 61
      make_kernel<Config<MATH, 128, Level::kPlain, 64, 32, 4, 128, false, false, 2>>("sm80-64x32-d128-bf16x3"),
      // 34 and 44 with a bias (1,N,S,S)
      make_kernel<Config<MATH, 64, Level::kAll, 64, 32, 4, 64, false, false, 2>>("sm80-64x32-d64-bf16x3-all"),
      make_kernel<Config<MATH, 128, Level::kAll, 64, 32, 4, 128, false, false, 2>>("sm80-64x32-d128-bf16x3-all"),
      make_kernel<Config<MATH, 256, Level::kAll, 64, 16, 4, 64, false, false, 1>>("sm80-64x16-d256-bf16x3-all"),
  };
  return {kernels, sizeof(kernels) / sizeof(kernels[0])};
}

// fp32 as it is, for short queries and head sizes past 256: fewer keys a block, since elements are twice as wide and
// operands are converted in registers.
template <Math MATH>
KernelList float_kernels() {
  static const Kernel kernels[] = {
      make_kernel<Config<MATH, 64, Level::kAll, 64, 32, 4, 64, false, false, 2>>("sm80-64x32-d64-all"),
      make_kernel<Config<MATH, 128, Level::kAll, 64, 32, 4, 64, false, false, 1>>("sm80-64x32-d128-all"),
      make_kernel<Config<MATH, 256, Level::kAll, 64, 16, 4, 64, false, false, 1>>("sm80-64x16-d256-all"),
      make_kernel<Config<MATH, 256, Level::kAll, 64, 16, 4, 64, true, false, 1>>("sm80-64x16-d512-all"),
  };
  return {kernels, sizeof(kernels) / sizeof(kernels[0])};
}

// Head sizes up to 256; tiles as for everything else, but with 64 columns 2 thread blocks, since 3 spill 116 bytes.
template <Math MATH>
KernelList half_dropout_kernels() {
  static const Kernel kernels[] = {
      make_kernel<Config<MATH, 64, Level::kDropout, 64, 64, 4, 64, false, true, 2>>("sm80-64x64-d64-dropout"),
      make_kernel<Config<MATH, 128, Level::kDropout, 64, 64, 4, 128, false, false, 2>>("sm80-64x64-d128-dropout"),
      make_kernel<Config<MATH, 256, Level::kDropout, 64, 32, 4, 128, false, false, 1>>("sm80-64x32-d256-dropout"),
  };
  return {kernels, sizeof(kernels) / sizeof(kernels[0])};
}

template <Math MATH>
KernelList float_dropout_kernels() {
  static const Kernel kernels[] = {
      make_kernel<Config<MATH, 128, Level::kDropout, 64, 32, 4, 64, false, false, 1>>("sm80-64x32-d128-dropout"),
      make_kernel<Config<MATH, 256, Level::kDropout, 64, 16, 4, 64, false, false, 1>>("sm80-64x16-d256-dropout"),
  };
  return {kernels, sizeof(kernels) / sizeof(kernels[0])};
}

}  // namespace ortflash::sm80

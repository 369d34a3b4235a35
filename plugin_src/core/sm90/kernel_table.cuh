// Which tiles are compiled, for one element type. The host takes the first row that fits the use and the head sizes, or
// one below it for the same sizes that needs less time, padding and rounds counted (relative_time in plan.cc). Figures:
// TFLOP/s on an H200, 16,384 tokens, fp16, 2026-11-29; those in us 2026-12-01.
#pragma once

#include "forward_kernel.cuh"
#include "kernel_table.h"

namespace ortflash::sm90 {

template <class Tile>
Kernel kernel(const char* name, DType dtype, unsigned uses, float row_cost = 1.0f, float tile_keys = 0.0f,
              bool whole_rounds = false) {
  static_assert(sizeof(SharedStorage<Tile>) + 1024 <= kSharedMemoryLimit, "the tile does not fit");
  // One KB more, because the kernel rounds the start of shared memory up to a swizzle pattern's 1024 bytes.
  return {name,
          dtype,
          uses,
          !Tile::SUM_BY_PRODUCT,
          Tile::SCALED,
          Tile::HEAD,
          Tile::BLOCK_Q,
          Tile::BLOCK_KV,
          row_cost,
          tile_keys,
          whole_rounds,
          Tile::THREADS,
          static_cast<int>(sizeof(SharedStorage<Tile>)) + 1024,
          reinterpret_cast<const void*>(&attention_forward<Tile>)};
}

template <class T>
KernelList kernels(DType dtype) {
  static const Kernel table[] = {
      kernel<Tile<T, 64, 128, 3, kLazy | kSumByProduct>>("sm90-d64-192x128", dtype, kFull),
      // S 512 / 1024 / 2048: 240 / 316 / 415; in turns 227 / 305 / 411, but full 389 instead of 384
      kernel<Tile<T, 64, 128, 3, kLazy | kSumByProduct | kNoTurns>>("sm90-d64-192x128-causal", dtype, kBanded),
      // a row takes 1.19 to 1.24 times as long at S 512 to 4096; S 197: 160 instead of 132
      kernel<Tile<T, 64, 128, 2, kLazy | kSumByProduct>>("sm90-d64-128x128", dtype, kFull | kBanded, 1.2f),
      // keys padded to 112s or in one step: S 257 187 us instead of 205, S 197 147 instead of 161; else 1.06 and 1.12
      // times as long a key
      kernel<Tile<T, 64, 112, 3, kLazy | kSumByProduct>>("sm90-d64-192x112", dtype, kFull, 1.06f),
      kernel<Tile<T, 64, 208, 2, kLazy | kSumByProduct | kNoTurns>>("sm90-d64-128x208", dtype, kFull, 1.34f),
      // where there are few tiles: one sequence of 16 heads, S 128 / 256 / 512, 4.8 / 5.8 / 7.9 us instead of 5.6 / 6.9
      // / 11
      kernel<Tile<T, 64, 128, 1, kLazy | kSumByProduct | kNoTurns>>("sm90-d64-64x128", dtype, kFull | kBanded, 1.68f),
      kernel<Tile<T, 64, 128, 3, kLazy>>("sm90-d64-192x128-lse", dtype, kFull | kBanded),
      kernel<Tile<T, 64, 128, 3, kLazy | kBiasTiles>>("sm90-d64-192x128-bias", dtype, kBiased),
      kernel<Tile<T, 64, 128, 3, kLazy | kMaskTiles>>("sm90-d64-192x128-mask", dtype, kMasked),
      kernel<Tile<T, 64, 128, 3, kLazy | kKeyTerms>>("sm90-d64-192x128-keys", dtype, kKeyed),
      // S 16384, one block in 1 / 4 / 16 / 64: 427 / 414 / 371 / 251; -any 358 / 336 / 273 / 185
      kernel<Tile<T, 64, 128, 2, kLazy | kWholeBlocks>>("sm90-d64-128x128-blocks", dtype, kBlocked),
      kernel<Tile<T, 64, 128, 2, kAnyTerms>>("sm90-d64-128x128-any", dtype, kAnything),
      kernel<Tile<T, 96, 128, 2, kLazy>>("sm90-d96-128x128", dtype, kFull | kBanded),
      // whole rounds, causal S 512 / 1024 / 2048: 318 / 435 / 539, else 310 / 426 / 528; d64 loses up to 4 %
      kernel<Tile<T, 128, 128, 2, kLazy>>("sm90-d128-128x128", dtype, kFull | kBanded, 1.0f, 166.0f, true),
      // S 512 / 1024 / 2048 / 4096 / 16384: 512 / 595 / 645 / 671 / 700; 128 keys a step 551 / 630 / 664 / 679 / 687
      kernel<Tile<T, 128, 176, 2, kLazy>>("sm90-d128-128x176", dtype, kFull, 0.967f, 229.0f),
      kernel<Tile<T, 128, 128, 2, kLazy | kBiasTiles>>("sm90-d128-128x128-bias", dtype, kBiased),
      kernel<Tile<T, 128, 128, 2, kLazy | kMaskTiles>>("sm90-d128-128x128-mask", dtype, kMasked),
      kernel<Tile<T, 128, 128, 2, kLazy | kKeyTerms>>("sm90-d128-128x128-keys", dtype, kKeyed),
      kernel<Tile<T, 128, 128, 2, kLazy | kWholeBlocks>>("sm90-d128-128x128-blocks", dtype, kBlocked),
      kernel<Tile<T, 128, 128, 2, kAnyTerms>>("sm90-d128-128x128-any", dtype, kAnything),
      kernel<Tile<T, 192, 112, 2, kNoFlags>>("sm90-d192-128x112", dtype, kFull | kBanded),
      kernel<Tile<T, 192, 64, 2, kAnyTerms>>("sm90-d192-128x64-any", dtype, kAnything),
      kernel<Tile<T, 256, 64, 2, kLazy>>("sm90-d256-128x64", dtype, kFull | kBanded),
      kernel<Tile<T, 256, 64, 2, kAnyTerms>>("sm90-d256-128x64-any", dtype, kAnything),
      kernel<Tile<T, 512, 32, 2, kLazy>>("sm90-d512-64x32", dtype, kFull | kBanded),
  };
  return {table, sizeof(table) / sizeof(table[0])};
}

}  // namespace ortflash::sm90

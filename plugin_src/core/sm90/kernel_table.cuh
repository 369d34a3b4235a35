// Which tiles are compiled, for one element type. The host takes the first row that fits the use and the head sizes.
#pragma once

#include "forward_kernel.cuh"
#include "kernel_table.h"

namespace ortflash::sm90 {

template <class Tile>
Kernel kernel(const char* name, DType dtype, unsigned uses) {
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
          Tile::THREADS,
          static_cast<int>(sizeof(SharedStorage<Tile>)) + 1024,
          reinterpret_cast<const void*>(&attention_forward<Tile>)};
}

template <class T>
KernelList kernels(DType dtype) {
  static const Kernel table[] = {
      kernel<Tile<T, 64, 128, 3, kLazy | kSumByProduct>>("sm90-d64-192x128", dtype, kFull | kBanded),
      kernel<Tile<T, 64, 128, 3, kLazy>>("sm90-d64-192x128-lse", dtype, kFull | kBanded),
      kernel<Tile<T, 64, 128, 3, kLazy | kBiasTiles>>("sm90-d64-192x128-bias", dtype, kBiased),
      kernel<Tile<T, 64, 128, 3, kLazy | kMaskTiles>>("sm90-d64-192x128-mask", dtype, kMasked),
      kernel<Tile<T, 64, 128, 3, kLazy | kKeyTerms>>("sm90-d64-192x128-keys", dtype, kKeyed),
      kernel<Tile<T, 64, 128, 2, kAnyTerms>>("sm90-d64-128x128-any", dtype, kAnything),
      kernel<Tile<T, 96, 128, 2, kLazy>>("sm90-d96-128x128", dtype, kFull | kBanded),
      kernel<Tile<T, 128, 128, 2, kLazy>>("sm90-d128-128x128", dtype, kFull | kBanded),
      kernel<Tile<T, 128, 128, 2, kLazy | kBiasTiles>>("sm90-d128-128x128-bias", dtype, kBiased),
      kernel<Tile<T, 128, 128, 2, kLazy | kMaskTiles>>("sm90-d128-128x128-mask", dtype, kMasked),
      kernel<Tile<T, 128, 128, 2, kLazy | kKeyTerms>>("sm90-d128-128x128-keys", dtype, kKeyed),
      kernel<Tile<T, 128, 128, 2, kAnyTerms>>("sm90-d128-128x128-any", dtype, kAnything),
      kernel<Tile<T, 192, 112, 2, kNoFlags>>("sm90-d192-128x112", dtype, kFull | kBanded),
      kernel<Tile<T, 192, 64, 2, kAnyTerms>>("sm90-d192-128x64-any", dtype, kAnything),
      kernel<Tile<T, 256, 64, 2, kLazy>>("sm90-d256-128x64", dtype, kFull | kBanded),
      kernel<Tile<T, 256, 64, 2, kAnyTerms>>("sm90-d256-128x64-any", dtype, kAnything),
  };
  return {table, sizeof(table) / sizeof(table[0])};
}

}  // namespace ortflash::sm90

// Which kernels of the gradients are compiled, for one element type. The host takes the first that fits the head size.
#pragma once

#include "backward_kernel.cuh"
#include "backward_kernels.h"

namespace ortflash::sm90 {

template <class T, int HEAD, bool MASKED>
BackwardKernel backward_kernel(const char* name) {
  using Tile = BackwardTile<T, HEAD, MASKED>;
  static_assert(sizeof(BackwardStorage<Tile>) + 1024 <= kSharedMemoryLimit, "the tile does not fit");
  // One KB more, because the kernel rounds the start of shared memory up to a swizzle pattern's 1024 bytes.
  return {name,
          MASKED,
          HEAD,
          Tile::BLOCK_Q,
          Tile::BLOCK_KV,
          Tile::THREADS,
          static_cast<int>(sizeof(BackwardStorage<Tile>)) + 1024,
          reinterpret_cast<const void*>(&prepare_rows<T, HEAD>),
          reinterpret_cast<const void*>(&attention_backward<Tile>),
          reinterpret_cast<const void*>(&finish_queries<T, HEAD>),
          kRowsThreads};
}

template <class T>
BackwardKernelList backward_kernels() {
  static const BackwardKernel table[] = {
      backward_kernel<T, 64, false>("sm90-backward-d64-128x128"),
      backward_kernel<T, 128, false>("sm90-backward-d128-128x64"),
      backward_kernel<T, 64, true>("sm90-backward-d64-128x128-masked"),
      backward_kernel<T, 128, true>("sm90-backward-d128-128x64-masked"),
  };
  return {table, sizeof(table) / sizeof(table[0])};
}

}  // namespace ortflash::sm90

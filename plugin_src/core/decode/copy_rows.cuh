// A warp's copy of some rows of Q, K or V to a panel in shared memory.
#pragma once

#include <cstdint>

#include "../sm80/panel.cuh"

namespace ortflash::decode {

// Starts the copy of P's rows, of which `count` exist, with `size` elements each; everything else becomes zeros.
// `from`: the first row; rows are `stride` elements apart; copy_bytes as in KernelParams. threadIdx.x must be the lane.
template <class P>
__device__ __forceinline__ void copy_rows(uint32_t to, const uint16_t* from, int64_t stride, int count, int size,
                                          int copy_bytes) {
  constexpr int kBytes = sizeof(uint16_t);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(from);
  if (copy_bytes == 16) {
    P::template copy_rows<32>(to, bytes, stride * kBytes, count, size * kBytes);
  } else {
    P::template copy_scattered<32, kBytes>(
        to, copy_bytes, [&](int r) { return bytes + r * stride * kBytes; },
        [&](int r) { return r < count ? size * kBytes : 0; });
  }
}

}  // namespace ortflash::decode

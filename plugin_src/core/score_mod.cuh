// What happens to a score between Q K^T and the softmax, in the operator's order:
//
//   s = scale * q k    s = cap * tanh(s / cap)    s = s + bias    s = mask ? s : mask_fill
//
// (causal, window, key_lengths and block_mask come after: block_range.cuh.)
//
// Bias and mask go from device memory straight to the registers of the lane that holds the score. A lane holds four
// adjacent keys of each 16 (sm80/panel.cuh), so a row's piece is one 8-byte load of an fp16 bias, one 4-byte load of a
// mask. They are loaded as soon as the block before is done, ahead of the wait for its keys. Axes along which they
// broadcast have stride 0 and are read again from L1 or L2, never expanded.
#pragma once

#include <cstdint>

#include "kernel_params.h"

namespace ortflash {

// Four adjacent elements of 1, 2 or 4 bytes, packed into BYTES words.
template <int BYTES>
__device__ __forceinline__ void load_four(uint32_t (&words)[BYTES], const uint8_t* row, int key) {
  const uint8_t* from = row + static_cast<int64_t>(key) * BYTES;
  if constexpr (BYTES == 1) {
    words[0] = __ldg(reinterpret_cast<const uint32_t*>(from));
  } else if constexpr (BYTES == 2) {
    const uint2 loaded = __ldg(reinterpret_cast<const uint2*>(from));
    words[0] = loaded.x;
    words[1] = loaded.y;
  } else {
    const uint4 loaded = __ldg(reinterpret_cast<const uint4*>(from));
    words[0] = loaded.x;
    words[1] = loaded.y;
    words[2] = loaded.z;
    words[3] = loaded.w;
  }
}

// The same for elements that are not adjacent or not aligned; 0 at and past key_count.
template <int BYTES>
__device__ __forceinline__ void load_four_single(uint32_t (&words)[BYTES], const uint8_t* row, int key, int key_count,
                                                 int64_t stride) {
#pragma unroll
  for (int i = 0; i < BYTES; ++i) words[i] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (key + i >= key_count) break;
    const uint8_t* from = row + (key + i) * stride * BYTES;
    uint32_t value;
    if constexpr (BYTES == 1) value = __ldg(from);
    if constexpr (BYTES == 2) value = __ldg(reinterpret_cast<const uint16_t*>(from));
    if constexpr (BYTES == 4) value = __ldg(reinterpret_cast<const uint32_t*>(from));
    words[i * BYTES / 4] |= value << (i * BYTES % 4 * 8);
  }
}

// One lane's elements of a tile's rows: GROUPS groups of four keys, 16 keys apart, the first at `key`. row[r]: key 0 of
// row r. by_four: four elements may be loaded together; so it is always, and key_count is a multiple of four, where
// nothing else may happen (ANY = false).
template <bool ANY, int BYTES, int ROWS, int GROUPS>
__device__ __forceinline__ void load_rows(uint32_t (&words)[ROWS][GROUPS][BYTES], const uint8_t* const (&row)[ROWS],
                                          int key, int key_count, bool by_four, int64_t stride) {
  if (!ANY || by_four) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      const int first = key + group * 16;
      if (ANY && first + 4 > key_count && first < key_count) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) load_four_single<BYTES>(words[r][group], row[r], first, key_count, stride);
      } else if (first < key_count) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) load_four<BYTES>(words[r][group], row[r], first);
      }  // else nobody looks at them: those keys are past the end
    }
  } else {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) {
        load_four_single<BYTES>(words[r][group], row[r], key + group * 16, key_count, stride);
      }
    }
  }
}

}  // namespace ortflash

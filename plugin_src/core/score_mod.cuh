// What happens to a score between Q K^T and the softmax, in the operator's order:
//
//   s = scale * q k    s = cap * tanh(s / cap)    s = s + bias    s = mask ? s : mask_fill
//
// (causal, window, key_lengths and block_mask come after: block_range.cuh.) Bias and mask tiles lie in shared memory,
// one row a query row or one row for all. A row in device memory may start at any address: it is copied in whole
// 16-byte pieces from the aligned address at or before its start, and the reader adds the row's skew. So odd lengths
// (197 keys of one byte) cost no more than even ones.
#pragma once

#include "kernel_params.h"
#include "sm80/ptx.cuh"

namespace ortflash {

// cap * tanh(x / cap) by exponentials: absolute error about 1e-7 * cap, unlike tanh.approx with 5e-4.
template <bool ACCURATE>
__device__ __forceinline__ float softcap(float x, float cap, float inverse) {
  if constexpr (ACCURATE) return cap * tanhf(x * inverse);
  const float e = sm80::exp2_approx(x * inverse * (2.0f * 1.44269504088896341f));
  return cap * (1.0f - __fdividef(2.0f, e + 1.0f));  // e = inf: 1 - 0; e = 0: -1
}

// A tile of ROWS x KEYS elements of 1, 2 or 4 bytes in shared memory.
template <int KEYS>
struct ScoreTile {
  static constexpr __host__ __device__ int pitch(int bytes) { return KEYS * bytes + 16; }

  // Where a row's elements start inside its shared row.
  static __device__ __forceinline__ int skew(const void* row, int copy) {
    return copy == 16 ? static_cast<int>(reinterpret_cast<uintptr_t>(row) & 15) : 0;
  }

  // Copies keys [first_key, first_key + KEYS) of `rows` rows; row(r) is the address of row r's key 0, or null past the
  // last query row. Reads nothing at or past key `key_count`. cp.async: the caller commits.
  template <int THREADS, class RowAddress>
  static __device__ __forceinline__ void copy(uint32_t smem, int rows, int bytes, int copy_bytes, int64_t column_stride,
                                              int first_key, int key_count, RowAddress row) {
    const int row_pitch = pitch(bytes);
    if (copy_bytes == 16) {
      const int pieces = KEYS * bytes / 16 + 1;  // the last one only for a skewed row
      const int end = min(first_key + KEYS, key_count) * bytes;
      for (int i = threadIdx.x; i < rows * pieces; i += THREADS) {
        const int r = i / pieces, piece = i - r * pieces;
        const uint8_t* address = row(r);
        if (address == nullptr) continue;
        const int start = first_key * bytes + piece * 16 - skew(address, 16);  // relative to the row
        const int valid = min(max(end - start, 0), 16);
        sm80::cp_async<16>(smem + r * row_pitch + piece * 16, address + (valid > 0 ? start : 0), valid);
      }
      return;
    }
    const int keys = min(KEYS, key_count - first_key);
    for (int i = threadIdx.x; i < rows * KEYS; i += THREADS) {
      const int r = i / KEYS, key = i % KEYS;
      const uint8_t* address = row(r);
      if (address == nullptr || key >= keys) continue;
      address += (first_key + key) * column_stride * bytes;
      const uint32_t to = smem + r * row_pitch + key * bytes;
      if (bytes == 1) sm80::store_shared_u8(to, *address);
      if (bytes == 2) sm80::store_shared_u16(to, *reinterpret_cast<const uint16_t*>(address));
      if (bytes == 4) sm80::store_shared_u32(to, *reinterpret_cast<const uint32_t*>(address));
    }
  }
};

}  // namespace ortflash

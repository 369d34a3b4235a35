// Which keys a query row sees, and which blocks of keys a tile of rows must visit.
//
//   row i sees keys j with  lower(i) <= j < upper(i)
//   lower(i) = max(0, i + offset - reach_left)      upper(i) = min(keys, i + offset + reach_right + 1)
//
// Causal is reach_right = 0; offset is 0 (top left) or keys - q_len (bottom right); keys = clamp(key_lengths[b], 0, T).
#pragma once

#include "kernel_params.h"

namespace ortflash {

struct KeyRange {
  int keys;    // keys of this batch element
  int offset;  // of the diagonal
  int reach_left, reach_right;

  __device__ __forceinline__ KeyRange(const KernelParams& p, int batch) {
    keys = p.kv_len;
    if (p.key_lengths != nullptr) {
      keys = min(max(p.key_lengths[static_cast<int64_t>(batch) * p.key_lengths_stride], 0), p.kv_len);
    }
    offset = p.bottom_right ? keys - p.q_len : 0;
    reach_left = p.reach_left;
    reach_right = p.reach_right;
  }

  __device__ __forceinline__ int lower(int row) const { return max(0, row + offset - reach_left); }
  __device__ __forceinline__ int upper(int row) const { return min(keys, row + offset + reach_right + 1); }
};

// The keys [begin, end) that rows [first_row, last_row] see together, and the part [clean_begin, clean_end) that each
// of them sees: blocks inside it need no comparison.
struct TileRange {
  int begin, end, clean_begin, clean_end;

  __device__ __forceinline__ TileRange(const KeyRange& range, int first_row, int last_row) {
    begin = range.lower(first_row);
    end = range.upper(last_row);
    clean_begin = range.lower(last_row);
    clean_end = range.upper(first_row);
  }

  __device__ __forceinline__ bool clean(int first_key, int key_count) const {
    return first_key >= clean_begin && first_key + key_count <= clean_end;
  }
};

// block_mask over rows [first_row, last_row] and KEYS keys from first_key: bit i tells whether the i-th 16 keys take
// part in any of the rows (elements of block_mask cover multiples of 16). All lanes of a warp call it with the same
// arguments.
template <int KEYS>
__device__ __forceinline__ uint32_t active_groups(const KernelParams& p, const uint8_t* head_mask, int first_row,
                                                  int last_row, int first_key) {
  constexpr int kGroups = KEYS / 16;
  const int row0 = first_row / p.block_size, rows = last_row / p.block_size - row0 + 1;
  uint32_t bits = 0;
  for (int i = threadIdx.x % 32; i < rows * kGroups; i += 32) {
    const int row = row0 + i / kGroups, key = first_key + i % kGroups * 16;
    if (key < p.kv_len &&
        head_mask[row * p.block_mask_strides.row + key / p.block_size * p.block_mask_strides.column] != 0) {
      bits |= 1u << (i % kGroups);
    }
  }
  return __reduce_or_sync(0xffffffffu, bits);
}

}  // namespace ortflash

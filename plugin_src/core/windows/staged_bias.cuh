// A head's bias in shared memory, where all windows share it: read from there it costs a lane one load for four keys,
// whatever its alignment in the tensor.
//
// Rows are 128 bytes apart. What a lane reads together, four keys or 8 bytes, lies 32 bytes a group of 16 keys from the
// next; the groups of a row are permuted so that four rows that are read together hit different banks.
#pragma once

#include <cstdint>

#include "../kernel_params.h"
#include "../sm80/ptx.cuh"

namespace ortflash::windows {

// Whether the bias is one for all windows of a head.
__device__ __forceinline__ bool is_shared_bias(const KernelParams& p) {
  return p.bias != nullptr && p.bias_bytes == 2 && p.bias_strides.batch == 0;
}

__device__ __forceinline__ uint32_t staged_offset(int row, int key) {
  return row * 128 + ((key * 2) ^ ((row & 3) << 5));
}

// By all threads of the block; the caller synchronises. Elements past the ends are 0.
template <class C>
__device__ __forceinline__ void stage_bias(const KernelParams& p, int head, uint32_t to) {
  const auto* bias = static_cast<const uint16_t*>(p.bias) + head * p.bias_strides.head;
  for (int i = threadIdx.y * 32 + threadIdx.x; i < C::KEYS * C::KEYS; i += C::THREADS) {
    const int row = i / C::KEYS, key = i % C::KEYS;
    const bool there = row < p.q_len && key < p.kv_len;
    sm80::store_shared_u16(to + staged_offset(row, key),
                           there ? bias[row * p.bias_strides.row + key * p.bias_strides.column] : uint16_t{0});
  }
}

// A lane's elements of two rows, 8 apart, from `row`.
template <class C, int ROWS>
__device__ __forceinline__ void load_staged(uint32_t (&words)[ROWS][C::N_TILES / 2][2], uint32_t from, int row,
                                            int lane) {
  static_assert(ROWS == 2);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int group = 0; group < C::N_TILES / 2; ++group) {
      sm80::load_shared_u64(words[r][group], from + staged_offset(row + 8 * r, group * 16 + lane % 4 * 4));
    }
  }
}

}  // namespace ortflash::windows

// Which query each row of a tile is: the queries of all heads that share a key/value head, head by head.
#pragma once

#include "../kernel_params.h"

namespace ortflash::decode {

struct Rows {
  int first_head, q_len, first_row, count;

  // Tile `tile` of `tile_rows` rows each.
  __device__ __forceinline__ Rows(const KernelParams& p, int kv_head, int tile, int tile_rows)
      : first_head(kv_head * p.group),
        q_len(p.q_len),
        first_row(tile * tile_rows),
        count(min(p.group * p.q_len - first_row, tile_rows)) {}

  __device__ __forceinline__ int head(int row) const { return first_head + (first_row + row) / q_len; }
  __device__ __forceinline__ int position(int row) const { return (first_row + row) % q_len; }

  // Where the row begins in its batch element of a (B,N,S,..) tensor; the last row's place for rows that aren't there.
  __device__ __forceinline__ int64_t element(const Strides& strides, int row) const {
    const int r = min(row, count - 1);
    return head(r) * strides.head + position(r) * strides.row;
  }
};

}  // namespace ortflash::decode

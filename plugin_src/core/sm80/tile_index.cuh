// Which tile of the problem a thread block computes, and which query each row of the tile is.
#pragma once

#include "../kernel_params.h"

namespace ortflash::sm80 {

// Tiles are ordered in sections of heads whose keys and values fit in L2 together, and inside a section from the last
// rows to the first: with a causal mask the longest tiles start first and the short ones fill the end.
struct TileIndex {
  int row_tile, pack, batch, value_split, key_split;

  __device__ __forceinline__ explicit TileIndex(const KernelParams& p) {
    unsigned index = blockIdx.x;
    key_split = index % p.key_splits;
    index /= p.key_splits;
    value_split = index % p.value_splits;
    index /= p.value_splits;
    const unsigned packs = p.num_heads / p.packed_heads;
    const unsigned section_tiles = static_cast<unsigned>(p.row_tiles) * p.heads_per_section;
    const unsigned section = index / section_tiles, in_section = index % section_tiles;
    const unsigned first_head = section * p.heads_per_section;
    const unsigned heads = min(packs * p.batch - first_head, static_cast<unsigned>(p.heads_per_section));
    row_tile = p.row_tiles - 1 - in_section / heads;
    const unsigned head = first_head + in_section % heads;
    pack = head % packs;
    batch = head / packs;
  }
};

// Rows of a tile -> (query head, position). Where q_len is short and heads share keys, the rows of `packed_heads` heads
// lie one after the other in a tile, so that keys and values are read once for all of them (MAY_PACK).
template <bool MAY_PACK>
struct RowMap {
  int first_row, first_head, q_len, rows, packed_heads;

  __device__ __forceinline__ RowMap(const KernelParams& p, const TileIndex& tile, int block_q)
      : first_row(tile.row_tile * block_q),
        first_head(MAY_PACK ? tile.pack * p.packed_heads : tile.pack),
        q_len(p.q_len),
        rows(MAY_PACK ? p.q_len * p.packed_heads : p.q_len),
        packed_heads(MAY_PACK ? p.packed_heads : 1) {}

  __device__ __forceinline__ bool packed() const { return MAY_PACK && packed_heads > 1; }
  __device__ __forceinline__ bool valid(int r) const { return first_row + r < rows; }
  __device__ __forceinline__ int head(int r) const {
    return packed() ? first_head + (first_row + r) / q_len : first_head;
  }
  __device__ __forceinline__ int position(int r) const { return packed() ? (first_row + r) % q_len : first_row + r; }
  // r, or the tile's last valid row: for loads that are harmless but must stay inside the tensor.
  __device__ __forceinline__ int clamped(int r) const { return min(first_row + r, rows - 1) - first_row; }
  // The first and last positions among rows [r, r + count).
  __device__ __forceinline__ int first_position(int r) const { return packed() ? 0 : first_row + r; }
  __device__ __forceinline__ int last_position(int r, int count) const {
    return packed() ? q_len - 1 : min(first_row + r + count, q_len) - 1;
  }
};

}  // namespace ortflash::sm80

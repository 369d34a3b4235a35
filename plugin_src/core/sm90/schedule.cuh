// Which query tile a block works on next, and which keys that tile needs.
//
// Static: every block walks the same list and takes every gridDim.x-th entry, there and back in turns, so nothing is
// counted in memory and a captured graph can be replayed. The list is made of sections of heads whose keys and values
// stay in L2 together; inside a section the heads go fastest, and the longest rows of tiles come first where causal,
// so that the last entries, which decide how evenly blocks finish, are the shortest.
#pragma once

#include "forward_params.h"
#include "tile_config.h"

namespace ortflash::sm90 {

// One query tile; travels from the producer to the consumers through shared memory.
struct alignas(16) QueryTile {
  int32_t row;  // first query row; -1 ends the walk
  int32_t head;
  int32_t batch;
  int32_t keys;                         // keys that exist: T, or key_lengths[batch]
  int32_t first_block, last_block;      // blocks of keys [first, last); walked from the last to the first
  int32_t diagonal_low, diagonal_high;  // row i sees keys [i + low, i + high) of [0, keys)

  __device__ bool valid() const { return row >= 0; }
  __device__ int blocks() const { return last_block - first_block; }
};

// Entry `turn` of this block's walk, or a number past the list.
__device__ __forceinline__ int tile_index(int turn) {
  const int lane = turn & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  return turn * gridDim.x + lane;
}

template <int BLOCK_Q, int BLOCK_KV>
__device__ __forceinline__ QueryTile query_tile(const ForwardParams& p, int turn) {
  QueryTile tile;
  const int index = tile_index(turn);
  if (index >= p.tiles) {
    tile.row = -1;
    tile.first_block = tile.last_block = 0;
    return tile;
  }
  const int section = index / p.section_tiles;
  const int inside = index - section * p.section_tiles;
  const int heads = min(p.section_heads, p.head_count - section * p.section_heads);
  const int down = inside / heads;
  const int batch_head = section * p.section_heads + inside - down * heads;
  tile.row = (p.longest_first ? p.q_tiles - 1 - down : down) * BLOCK_Q;
  tile.batch = batch_head / p.num_heads;
  tile.head = batch_head - tile.batch * p.num_heads;

  tile.keys = p.kv_len;
  if (p.key_lengths != nullptr) {
    tile.keys = min(max(p.key_lengths[tile.batch * p.key_lengths_stride], 0), p.kv_len);
  }
  const int offset = p.bottom_right ? tile.keys - p.q_len : 0;
  tile.diagonal_low = p.left == kUnbounded ? -kUnbounded : offset - p.left;
  tile.diagonal_high = p.right == kUnbounded ? kUnbounded : offset + p.right + 1;

  const int last_row = min(tile.row + BLOCK_Q, p.q_len) - 1;
  const int first_key = max(0, tile.row + tile.diagonal_low);
  const int end_key = min(tile.keys, last_row + tile.diagonal_high);
  tile.first_block = 0;
  tile.last_block = 0;
  if (end_key > first_key) {
    tile.first_block = first_key / BLOCK_KV;
    tile.last_block = (end_key + BLOCK_KV - 1) / BLOCK_KV;
  }
  return tile;
}

// Where a row of a tile goes.
template <class T>
__device__ __forceinline__ T* output_row(const ForwardParams& p, const QueryTile& tile, int row) {
  return static_cast<T*>(p.output) + tile.batch * p.output_batch + tile.head * p.output_head + row * p.output_row;
}
__device__ __forceinline__ int64_t lse_index(const ForwardParams& p, const QueryTile& tile, int row) {
  return (int64_t{tile.batch} * p.num_heads + tile.head) * p.q_len + row;
}

}  // namespace ortflash::sm90

// Which query tiles a block works on, in which order, and which keys each of them needs.
//
// Static: nothing is counted in memory, so a captured graph can be replayed and results never depend on timing. Tiles
// are listed in sections of heads whose keys and values stay in L2 together, and dealt to the blocks in rounds of one
// each. Where rows differ in length (causal), a section lists the longest tiles first, heads side by side; rounds go
// there and back in turns, and a section starts a round of its own, so that what a block gets too much of in one round
// it gets too little of in the next. Simulated on causal shapes of 512 to 16384 rows this keeps 132 multiprocessors
// busy for 97 to 99.9 % of the time, as an atomic counter would.
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

// This block's walk over the list.
template <int BLOCK_Q, int BLOCK_KV>
class TileWalk {
 public:
  __device__ explicit TileWalk(const ForwardParams& p) : p_(p) {}

  // The next tile, or one that isn't valid after the last.
  __device__ QueryTile next() {
    while (true) {
      const int section = turn_ / p_.section_rounds, round = turn_ - section * p_.section_rounds;
      const int heads = min(p_.section_heads, p_.head_count - section * p_.section_heads);
      if (heads <= 0) return {-1, 0, 0, 0, 0, 0, 0, 0};
      ++turn_;
      const bool back = p_.longest_first && (((section + round) & 1)) != 0;
      const int index = round * gridDim.x + (back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
      if (index >= heads * p_.q_tiles) continue;
      int head = index / p_.q_tiles, q_tile = index - head * p_.q_tiles;  // the rows of one head after the other
      if (p_.heads_fastest) {
        q_tile = index / heads;
        head = index - q_tile * heads;
      }
      if (p_.longest_first) q_tile = p_.q_tiles - 1 - q_tile;
      return describe(section * p_.section_heads + head, q_tile * BLOCK_Q);
    }
  }

 private:
  __device__ QueryTile describe(int batch_head, int row) const;

  const ForwardParams& p_;
  int turn_ = 0;
};

template <int BLOCK_Q, int BLOCK_KV>
__device__ __forceinline__ QueryTile TileWalk<BLOCK_Q, BLOCK_KV>::describe(int batch_head, int row) const {
  const ForwardParams& p = p_;
  QueryTile tile;
  tile.row = row;
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

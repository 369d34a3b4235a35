// The blocks of keys of one query tile that hold anything, from the last to the first.
#pragma once

#include "forward_params.h"
#include "schedule.cuh"

namespace ortflash::sm90 {

// One step of a tile's walk over the keys.
struct KvStep {
  int32_t block;   // keys [block * BLOCK_KV, (block + 1) * BLOCK_KV)
  bool last;       // of this tile
  bool patchwork;  // block_mask takes part of it away

  // In shared memory, beside the stage of K that it belongs to.
  __device__ int32_t encode() const { return block << 2 | int{patchwork} << 1 | int{last}; }
  static __device__ KvStep decode(int32_t code) { return {code >> 2, (code & 1) != 0, (code & 2) != 0}; }
};

// All blocks of the tile: for kernels that don't know block_mask.
class PlainWalk {
 public:
  PlainWalk() = default;
  __device__ PlainWalk(const ForwardParams&, const QueryTile& tile)
      : first_block_(tile.first_block), end_(tile.last_block) {}

  __device__ bool done() const { return end_ == first_block_; }

  __device__ KvStep next(const ForwardParams&, const QueryTile&) {
    --end_;
    return {end_, done(), false};
  }

 private:
  int first_block_;
  int end_;  // blocks from here on are behind
};

// The blocks that block_mask leaves anything of. Walks with a whole warp, which looks at block_mask for 32 blocks at a
// time, or for 128 where one entry tells about a block: a skipped block costs a bit.
template <class Tile>
class MaskedWalk {
 public:
  MaskedWalk() = default;
  __device__ MaskedWalk(const ForwardParams& p, const QueryTile& tile)
      : end_(tile.last_block), chunk_(tile.last_block) {
    find(p, tile);
  }

  __device__ bool done() const { return upcoming_ < 0; }

  __device__ KvStep next(const ForwardParams& p, const QueryTile& tile) {
    KvStep step{upcoming_, false, Tile::ANY_TERMS && upcoming_patchwork_};
    find(p, tile);
    step.last = done();
    return step;
  }

 private:
  static constexpr int WORDS = Tile::ANY_TERMS ? 1 : 4;

  __device__ void find(const ForwardParams& p, const QueryTile& tile) {
    upcoming_patchwork_ = false;
    if (Tile::ANY_TERMS && p.block_mask == nullptr) {
      upcoming_ = end_ > tile.first_block ? --end_ : -1;
      return;
    }
    upcoming_ = -1;
    while (kept_[0] == 0) {
      if (chunk_ - 32 > end_) {
        chunk_ -= 32;
#pragma unroll
        for (int word = 0; word < WORDS; ++word) kept_[word] = word + 1 < WORDS ? kept_[word + 1] : 0;
      } else if (end_ > tile.first_block) {
        refill(p, tile);
      } else {
        return;
      }
    }
    const int lane = __ffs(kept_[0]) - 1;
    upcoming_ = chunk_ - 1 - lane;
    if constexpr (Tile::ANY_TERMS) upcoming_patchwork_ = (broken_ >> lane & 1) != 0;
    kept_[0] &= kept_[0] - 1;
  }

  // Lane i looks at blocks end_ - 1 - i, end_ - 33 - i, ...
  __device__ void refill(const ForwardParams& p, const QueryTile& tile) {
    const uint8_t* mask = p.block_mask + tile.batch * p.block_mask_batch + tile.head * p.block_mask_head;
    const int lane = static_cast<int>(threadIdx.x % 32);
    bool any[WORDS] = {};
    if constexpr (Tile::ANY_TERMS) {
      const int block = end_ - 1 - lane;
      bool all = true;
      if (block >= tile.first_block) {
        const int last_row = (min(tile.row + Tile::BLOCK_Q, p.q_len) - 1) >> p.block_shift;
        const int last_column = (min((block + 1) * Tile::BLOCK_KV, p.kv_len) - 1) >> p.block_shift;
        for (int row = tile.row >> p.block_shift; row <= last_row; ++row) {
          for (int column = block * Tile::BLOCK_KV >> p.block_shift; column <= last_column; ++column) {
            const bool keep = mask[row * p.block_mask_row + column * p.block_mask_column] != 0;
            any[0] |= keep;
            all &= keep;
          }
        }
      }
      broken_ = __ballot_sync(~0u, !all);
    } else {
      mask += (tile.row >> p.block_shift) * p.block_mask_row;
#pragma unroll
      for (int word = 0; word < WORDS; ++word) {
        const int block = end_ - 1 - word * 32 - lane;
        any[word] =
            block >= tile.first_block && mask[(block * Tile::BLOCK_KV >> p.block_shift) * p.block_mask_column] != 0;
      }
    }
#pragma unroll
    for (int word = 0; word < WORDS; ++word) kept_[word] = __ballot_sync(~0u, any[word]);
    chunk_ = end_;
    end_ = max(end_ - 32 * WORDS, tile.first_block);
  }

  int end_;                    // blocks below this one haven't been looked at
  int chunk_;                  // bit i of kept_[word] and broken_: block chunk_ - 1 - 32 word - i
  uint32_t kept_[WORDS] = {};  // to come
  uint32_t broken_ = 0;        // only in part
  int upcoming_ = -1;
  bool upcoming_patchwork_ = false;
};

// What block_mask leaves of a block: bit i tells whether a row of the tile keeps any of keys [16 i, 16 i + 16). Its
// entries cover multiples of 16. By a whole warp.
template <class Tile>
__device__ uint32_t kept_groups(const ForwardParams& p, const QueryTile& tile, int block) {
  const int group = static_cast<int>(threadIdx.x % 32), key = block * Tile::BLOCK_KV + group * 16;
  bool any = false;
  if (group < Tile::BLOCK_KV / 16 && key < p.kv_len) {
    const uint8_t* mask = p.block_mask + tile.batch * p.block_mask_batch + tile.head * p.block_mask_head +
                          (key >> p.block_shift) * p.block_mask_column;
    const int last_row = (min(tile.row + Tile::BLOCK_Q, p.q_len) - 1) >> p.block_shift;
    for (int row = tile.row >> p.block_shift; row <= last_row; ++row) any |= mask[row * p.block_mask_row] != 0;
  }
  return __ballot_sync(~0u, any);
}

template <class Tile>
using BlockWalk = typename Select<Tile::BLOCK_MASK, MaskedWalk<Tile>, PlainWalk>::Type;

}  // namespace ortflash::sm90

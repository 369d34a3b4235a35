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
  __device__ PlainWalk(const ForwardParams&, const QueryTile& tile)
      : first_block_(tile.first_block), end_(tile.last_block) {}

  __device__ bool done() const { return end_ == first_block_; }

  __device__ KvStep next() {
    --end_;
    return {end_, done(), false};
  }

 private:
  const int first_block_;
  int end_;  // blocks from here on are behind
};

// The blocks that block_mask leaves anything of. Walks with a whole warp, which looks at block_mask for 32 blocks at a
// time: a skipped block costs a bit.
template <class Tile>
class MaskedWalk {
 public:
  __device__ MaskedWalk(const ForwardParams& p, const QueryTile& tile)
      : p_(p), tile_(tile), end_(tile.last_block), kept_(0), broken_(0), chunk_(tile.last_block) {
    find();
  }

  __device__ bool done() const { return upcoming_ < 0; }

  __device__ KvStep next() {
    KvStep step{upcoming_, false, upcoming_patchwork_};
    find();
    step.last = done();
    return step;
  }

 private:
  __device__ void find() {
    upcoming_patchwork_ = false;
    if (p_.block_mask == nullptr) {
      upcoming_ = end_ > tile_.first_block ? --end_ : -1;
      return;
    }
    while (kept_ == 0 && end_ > tile_.first_block) refill();
    const int lane = __ffs(kept_) - 1;
    upcoming_ = kept_ == 0 ? -1 : chunk_ - 1 - lane;
    upcoming_patchwork_ = kept_ != 0 && (broken_ >> lane & 1) != 0;
    kept_ &= kept_ - 1;
  }

  // Lane i looks at block end_ - 1 - i.
  __device__ void refill() {
    const int block = end_ - 1 - static_cast<int>(threadIdx.x % 32);
    bool any = false, all = true;
    if (block >= tile_.first_block) {
      const uint8_t* mask = p_.block_mask + tile_.batch * p_.block_mask_batch + tile_.head * p_.block_mask_head;
      const int last_row = (min(tile_.row + Tile::BLOCK_Q, p_.q_len) - 1) >> p_.block_shift;
      const int last_column = (min((block + 1) * Tile::BLOCK_KV, p_.kv_len) - 1) >> p_.block_shift;
      for (int row = tile_.row >> p_.block_shift; row <= last_row; ++row) {
        for (int column = block * Tile::BLOCK_KV >> p_.block_shift; column <= last_column; ++column) {
          const bool keep = mask[row * p_.block_mask_row + column * p_.block_mask_column] != 0;
          any |= keep;
          all &= keep;
        }
      }
    }
    kept_ = __ballot_sync(~0u, any);
    broken_ = __ballot_sync(~0u, !all);
    chunk_ = end_;
    end_ = max(end_ - 32, tile_.first_block);
  }

  const ForwardParams& p_;
  const QueryTile& tile_;
  int end_;                 // blocks below this one haven't been looked at
  uint32_t kept_, broken_;  // bit i: block chunk_ - 1 - i
  int chunk_;
  int upcoming_;
  bool upcoming_patchwork_;
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
using BlockWalk = typename Select<Tile::ANY_TERMS, MaskedWalk<Tile>, PlainWalk>::Type;

}  // namespace ortflash::sm90

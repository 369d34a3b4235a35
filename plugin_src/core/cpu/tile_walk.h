// Which tiles of keys an Item visits. Included by each instruction set's own file.
#pragma once

#include <cstdint>

#include "tile_kernel.h"

namespace ortflash::cpu {
namespace {

// The tiles of the keys in `range` that the block mask keeps. Each lies between two multiples of `tile_keys`, wherever
// the range starts, so that a row's sums do not depend on how rows are cut into items. Neighbouring blocks that are
// kept share tiles.
class TileWalk {
 public:
  TileWalk(const AttentionParams& p, const Item& item, KeyRange range, int64_t tile_keys)
      : range_(range), tile_keys_(tile_keys), block_size_(p.block_size) {
    if (p.block_mask == nullptr) return;
    const Strides& strides = p.block_mask_strides;
    column_stride_ = strides.column;
    keep_ = p.block_mask + item.batch * strides.batch + item.first_head * strides.head +
            item.first_row / p.block_size * strides.row;
  }

  // The next tile in *tile, or false at the end.
  bool next(KeyRange* tile) {
    while (range_.first < range_.last && !kept(range_.first)) range_.first = block_end(range_.first);
    if (range_.first >= range_.last) return false;
    const int64_t boundary = (range_.first / tile_keys_ + 1) * tile_keys_;
    const int64_t limit = boundary < range_.last ? boundary : range_.last;
    int64_t end = keep_ == nullptr ? limit : block_end(range_.first);
    while (end < limit && kept(end)) end = block_end(end);
    *tile = {range_.first, end < limit ? end : limit};
    range_.first = tile->last;
    return true;
  }

 private:
  bool kept(int64_t key) const { return keep_ == nullptr || keep_[key / block_size_ * column_stride_] != 0; }
  int64_t block_end(int64_t key) const { return (key / block_size_ + 1) * block_size_; }

  KeyRange range_;
  int64_t tile_keys_;
  int64_t block_size_;
  const uint8_t* keep_ = nullptr;
  int64_t column_stride_ = 0;
};

}  // namespace
}  // namespace ortflash::cpu

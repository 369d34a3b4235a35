// The rows of a pass: which query of which head lies in which lane, and which keys it may see.
// Included after a vec_*.h.
#pragma once

#include <cstdint>

#include "key_range.h"
#include "tile_kernel.h"
#include "tile_softmax.h"

namespace ortflash::cpu {
namespace {

// kWidth lanes, the first `count` of which are queries; the others repeat the last query.
template <int kWidth>
struct PassRows {
  int64_t count = 0;
  int64_t batch = 0;
  int64_t head[kWidth];
  int64_t row[kWidth];
  KeyRange keys[kWidth];
  KeyRange seen_by_any{0, 0};
  KeyRange seen_by_all{0, 0};

  // The queries [start, start + kWidth) of the item, as far as they go.
  void set(const AttentionParams& p, const Item& item, int64_t start) {
    const int64_t all_keys = keys_in_batch(p, item.batch);
    const int64_t left = item.heads * item.rows - start;
    count = left < kWidth ? left : kWidth;
    batch = item.batch;
    seen_by_any = {all_keys, 0};
    seen_by_all = {0, all_keys};
    int64_t next_head = item.first_head + start / item.rows;
    int64_t next_row = item.first_row + start % item.rows;
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      if (lane > 0 && lane < count && ++next_row == item.first_row + item.rows) {
        next_row = item.first_row;
        ++next_head;
      }
      head[lane] = next_head;
      row[lane] = next_row;
      const KeyRange range = key_range(p, all_keys, next_row);
      keys[lane] = range;
      if (range.first > seen_by_all.first) seen_by_all.first = range.first;
      if (range.last < seen_by_all.last) seen_by_all.last = range.last;
      if (range.first >= range.last) continue;
      if (range.first < seen_by_any.first) seen_by_any.first = range.first;
      if (range.last > seen_by_any.last) seen_by_any.last = range.last;
    }
  }

  // Element offset of each lane's row in a (B,N,S,...) tensor.
  void offsets(const Strides& strides, int64_t* of) const {
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      of[lane] = batch * strides.batch + head[lane] * strides.head + row[lane] * strides.row;
    }
  }

  bool see(KeyRange tile) const { return tile.first < seen_by_any.last && seen_by_any.first < tile.last; }

  // scores[j][lane] = -inf where the lane's row does not see key tile.first + j.
  void limit(float* scores, KeyRange tile) const {
    if (seen_by_all.first <= tile.first && tile.last <= seen_by_all.last) return;
    alignas(64) float first[kWidth];
    alignas(64) float last[kWidth];
    const int64_t length = tile.last - tile.first;
    const auto clamp = [length](int64_t x) { return static_cast<float>(x < 0 ? 0 : (x < length ? x : length)); };
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      first[lane] = clamp(keys[lane].first - tile.first);
      last[lane] = clamp(keys[lane].last - tile.first);
    }
    limit_keys<kWidth / kLanes>(scores, length, first, last);
  }
};

}  // namespace
}  // namespace ortflash::cpu

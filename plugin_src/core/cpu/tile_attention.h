// The attention of one Item, tile by tile. Included after a vec_*.h by each tile_*.cc, in that file's own copy.
//
//   for each tile of keys that any row can see:
//     S^T = K (scale Q)^T;  cap, bias, mask, limits
//     P^T = exp(S^T - max);  O^T = correction O^T + V^T P^T
//   O = (O^T / sum)^T
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../key_range.h"
#include "tile_kernel.h"
#include "tile_products.h"
#include "tile_softmax.h"

namespace ortflash::cpu {
namespace {

constexpr int64_t kPassRows = kMaxVectors * kLanes;  // queries of one pass of the products
constexpr int64_t kMaxRows = 64;                     // queries of an Item; they share the loaded keys and values
constexpr int64_t kMaxPasses = kMaxRows / kPassRows;
constexpr int64_t kTileKeys = 64;

constexpr int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// fp32 buffers of a thread, each a multiple of 256 bytes. D = head_size, E = v_head_size.
struct Scratch {
  float* query_t;   // (passes, D, pass rows)
  float* output_t;  // (passes, E, pass rows)
  float* scores;    // (kTileKeys, pass rows)
  float* key;       // (kTileKeys, D)
  float* value;     // (kTileKeys, E)
  float* bias;      // (kTileKeys, pass rows) or (kTileKeys)
  float* mask;      // (kTileKeys, pass rows)

  // Lays the buffers out from `start`; returns the bytes they take. A null start only counts.
  int64_t lay_out(const AttentionParams& p, void* start) {
    int64_t used = 0;
    const auto take = [&](float** buffer, int64_t count) {
      if (start != nullptr) *buffer = reinterpret_cast<float*>(static_cast<char*>(start) + used);
      used += round_up(count * static_cast<int64_t>(sizeof(float)), 256);
    };
    take(&query_t, kMaxRows * p.head_size);
    take(&output_t, kMaxRows * p.v_head_size);
    take(&scores, kTileKeys * kPassRows);
    take(&key, kTileKeys * p.head_size);
    take(&value, kTileKeys * p.v_head_size);
    take(&bias, p.attn_bias != nullptr ? kTileKeys * kPassRows : 0);
    take(&mask, p.attn_mask != nullptr ? kTileKeys * kPassRows : 0);
    return used;
  }
};

// A tile of keys or values as fp32 rows.
struct Rows {
  const float* data;
  int64_t stride;
};

Rows fp32_rows(DType dtype, const void* tensor, int64_t offset, int64_t stride, int64_t rows, int64_t columns,
               float* buffer) {
  if (dtype == DType::kFloat32) return {static_cast<const float*>(tensor) + offset, stride};
  with_type(dtype, tensor, offset, [&](const auto* from) { load_rows(from, stride, rows, columns, buffer); });
  return {buffer, columns};
}

// The tiles of keys [first, last) that the block mask keeps for one row of blocks, each at most kTileKeys long.
class TileWalk {
 public:
  TileWalk(const AttentionParams& p, const Item& item, KeyRange range) : range_(range), block_size_(p.block_size) {
    if (p.block_mask != nullptr) {
      column_stride_ = p.block_mask_strides.column;
      keep_ = p.block_mask + item.batch * p.block_mask_strides.batch + item.head * p.block_mask_strides.head +
              item.first_row / p.block_size * p.block_mask_strides.row;
    }
  }

  // The next tile in *tile, or false at the end.
  bool next(KeyRange* tile) {
    while (range_.first < range_.last && !kept(range_.first)) range_.first = block_end(range_.first);
    if (range_.first >= range_.last) return false;
    const int64_t limit = range_.first + kTileKeys < range_.last ? range_.first + kTileKeys : range_.last;
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
  int64_t block_size_;
  const uint8_t* keep_ = nullptr;
  int64_t column_stride_ = 0;
};

// Up to kVectors * kLanes consecutive rows of an Item, and their state.
template <int kVectors>
struct Pass {
  static constexpr int64_t kWidth = kVectors * kLanes;

  int64_t first_row = 0;  // of the sequence
  int64_t rows = 0;       // 1 .. kWidth; lanes past them repeat the last row's limits and hold zeros
  float* query_t = nullptr;
  float* output_t = nullptr;
  OnlineSoftmax<kVectors> softmax;
  KeyRange ranges[kWidth];  // per row
  KeyRange seen_by_any{0, 0};
  KeyRange seen_by_all{0, 0};

  void start(const AttentionParams& p, const Item& item, float scale, int64_t keys) {
    const int64_t offset =
        item.batch * p.query_strides.batch + item.head * p.query_strides.head + first_row * p.query_strides.row;
    with_type(p.dtype, p.query, offset, [&](const auto* query) {
      load_transposed(query, p.query_strides.row, 1, rows, p.head_size, scale, kWidth, query_t);
    });
    std::memset(output_t, 0, static_cast<size_t>(p.v_head_size * kWidth) * sizeof(float));
    softmax.reset(p.sinks != nullptr ? p.sinks[item.head * p.sinks_stride] : -kInfinity);
    seen_by_any = {keys, 0};
    seen_by_all = {0, keys};
    for (int64_t r = 0; r < kWidth; ++r) {
      const KeyRange range = key_range(p, keys, first_row + (r < rows ? r : rows - 1));
      ranges[r] = range;
      if (range.first < range.last) {
        if (range.first < seen_by_any.first) seen_by_any.first = range.first;
        if (range.last > seen_by_any.last) seen_by_any.last = range.last;
      }
      if (range.first > seen_by_all.first) seen_by_all.first = range.first;
      if (range.last < seen_by_all.last) seen_by_all.last = range.last;
    }
  }

  bool sees(KeyRange tile) const { return tile.first < seen_by_any.last && seen_by_any.first < tile.last; }

  void limit(float* scores, KeyRange tile) const {
    if (seen_by_all.first <= tile.first && tile.last <= seen_by_all.last) return;
    alignas(64) float first[kWidth];
    alignas(64) float last[kWidth];
    const int64_t keys = tile.last - tile.first;
    const auto clamp = [&](int64_t x) { return static_cast<float>(x < 0 ? 0 : (x < keys ? x : keys)); };
    for (int64_t r = 0; r < kWidth; ++r) {
      first[r] = clamp(ranges[r].first - tile.first);
      last[r] = clamp(ranges[r].last - tile.first);
    }
    limit_keys<kVectors>(scores, keys, first, last);
  }

  void finish(const AttentionParams& p, const Item& item) {
    alignas(64) float inverse[kWidth];
    float* lse = p.softmax_lse == nullptr
                     ? nullptr
                     : p.softmax_lse + (item.batch * p.num_heads + item.head) * p.q_len + first_row;
    for (int64_t r = 0; r < kWidth; ++r) {
      const float sum = softmax.row_sum[r];
      inverse[r] = sum == 0.0f ? 0.0f : 1.0f / sum;
      if (lse != nullptr && r < rows) {
        lse[r] = sum == 0.0f ? -kInfinity : static_cast<float>(softmax.row_max[r] + ::log(static_cast<double>(sum)));
      }
    }
    const int64_t offset =
        item.batch * p.output_strides.batch + item.head * p.output_strides.head + first_row * p.output_strides.row;
    with_type(p.dtype, p.output, offset, [&](auto* output) {
      store_transposed(output_t, kWidth, inverse, rows, p.v_head_size, output, p.output_strides.row);
    });
  }
};

// The bias of a tile, added to the scores.
template <int kVectors>
void add_bias(const AttentionParams& p, const Item& item, const Pass<kVectors>& pass, KeyRange tile, float* buffer,
              float* scores) {
  const int64_t keys = tile.last - tile.first;
  const Strides& strides = p.bias_strides;
  const int64_t offset = item.batch * strides.batch + item.head * strides.head + pass.first_row * strides.row +
                         tile.first * strides.column;
  with_type(p.bias_dtype, p.attn_bias, offset, [&](const auto* bias) {
    if (strides.row == 0) {
      load_transposed(bias, 0, strides.column, 1, keys, 1.0f, kLanes, buffer);
      for (int64_t j = 0; j < keys; ++j) buffer[j] = buffer[j * kLanes];
      add_per_key<kVectors>(scores, keys, buffer);
    } else {
      load_transposed(bias, strides.row, strides.column, pass.rows, keys, 1.0f, pass.kWidth, buffer);
      add_tile(scores, keys * pass.kWidth, buffer);
    }
  });
}

// A tile of attn_mask: loaded before the product, so that a tile without a single True is skipped.
template <int kVectors>
class MaskTile {
 public:
  MaskTile(const AttentionParams& p, const Item& item, const Pass<kVectors>& pass, KeyRange tile, float* buffer)
      : keys_(tile.last - tile.first), fill_(p.mask_fill), column_stride_(p.mask_strides.column), buffer_(buffer) {
    if (p.attn_mask == nullptr) return;
    given_ = true;
    const Strides& strides = p.mask_strides;
    const uint8_t* mask = p.attn_mask + item.batch * strides.batch + item.head * strides.head +
                          pass.first_row * strides.row + tile.first * strides.column;
    if (strides.row == 0) {
      per_key_ = mask;
    } else {
      load_transposed(reinterpret_cast<const Byte*>(mask), strides.row, strides.column, pass.rows, keys_, 1.0f,
                      pass.kWidth, buffer);
    }
  }

  // Nothing of this tile takes part. A finite fill always does.
  bool empty() const {
    if (!given_ || fill_ != -kInfinity) return false;
    if (per_key_ != nullptr) {
      for (int64_t j = 0; j < keys_; ++j) {
        if (per_key_[j * column_stride_] != 0) return false;
      }
      return true;
    }
    Vec sum = zero();
    for (int64_t i = 0; i < keys_ * Pass<kVectors>::kWidth; i += kLanes) sum = add(sum, load(buffer_ + i));
    return !any(less(zero(), sum));
  }

  void apply(float* scores) const {
    if (!given_) return;
    if (per_key_ != nullptr) {
      mask_per_key<kVectors>(scores, keys_, per_key_, column_stride_, fill_);
    } else {
      mask_tile(scores, keys_ * Pass<kVectors>::kWidth, buffer_, fill_);
    }
  }

 private:
  bool given_ = false;
  int64_t keys_;
  float fill_;
  int64_t column_stride_;
  const uint8_t* per_key_ = nullptr;
  const float* buffer_;
};

template <int kVectors>
void attend(const AttentionParams& p, const Item& item, Scratch& scratch) {
  constexpr int64_t kWidth = Pass<kVectors>::kWidth;
  const float scale = p.scale != 0.0f ? p.scale : 1.0f / std::sqrt(static_cast<float>(p.head_size));
  const int64_t keys = keys_in_batch(p, item.batch);
  const int64_t kv_head = item.head / (p.num_heads / p.kv_num_heads);
  const int64_t key_offset = item.batch * p.key_strides.batch + kv_head * p.key_strides.head;
  const int64_t value_offset = item.batch * p.value_strides.batch + kv_head * p.value_strides.head;

  Pass<kVectors> passes[kMaxPasses];
  const int64_t pass_count = (item.rows + kWidth - 1) / kWidth;
  KeyRange range{keys, 0};
  for (int64_t i = 0; i < pass_count; ++i) {
    Pass<kVectors>& pass = passes[i];
    pass.first_row = item.first_row + i * kWidth;
    pass.rows = item.rows - i * kWidth < kWidth ? item.rows - i * kWidth : kWidth;
    pass.query_t = scratch.query_t + i * kWidth * p.head_size;
    pass.output_t = scratch.output_t + i * kWidth * p.v_head_size;
    pass.start(p, item, scale, keys);
    if (pass.seen_by_any.first < range.first) range.first = pass.seen_by_any.first;
    if (pass.seen_by_any.last > range.last) range.last = pass.seen_by_any.last;
  }

  TileWalk walk(p, item, range);
  KeyRange tile;
  while (walk.next(&tile)) {
    const int64_t tile_keys = tile.last - tile.first;
    Rows key{nullptr, 0}, value{nullptr, 0};
    for (int64_t i = 0; i < pass_count; ++i) {
      Pass<kVectors>& pass = passes[i];
      if (!pass.sees(tile)) continue;
      const MaskTile<kVectors> mask(p, item, pass, tile, scratch.mask);
      if (mask.empty()) continue;
      if (key.data == nullptr) {
        key = fp32_rows(p.dtype, p.key, key_offset + tile.first * p.key_strides.row, p.key_strides.row, tile_keys,
                        p.head_size, scratch.key);
        value = fp32_rows(p.dtype, p.value, value_offset + tile.first * p.value_strides.row, p.value_strides.row,
                          tile_keys, p.v_head_size, scratch.value);
      }
      score_tile<kVectors>(key.data, key.stride, tile_keys, pass.query_t, p.head_size, scratch.scores);
      if (p.softcap > 0) cap_scores(scratch.scores, tile_keys * kWidth, p.softcap);
      if (p.attn_bias != nullptr) add_bias(p, item, pass, tile, scratch.bias, scratch.scores);
      mask.apply(scratch.scores);
      pass.limit(scratch.scores, tile);
      alignas(64) float correction[kWidth];
      pass.softmax.absorb(scratch.scores, tile_keys, correction);
      output_tile<kVectors>(value.data, value.stride, tile_keys, scratch.scores, correction, p.v_head_size,
                            pass.output_t);
    }
  }
  for (int64_t i = 0; i < pass_count; ++i) passes[i].finish(p, item);
}

template <int kVectors>
void dispatch(int vectors, const AttentionParams& params, const Item& item, Scratch& scratch) {
  if (vectors == kVectors) return attend<kVectors>(params, item, scratch);
  if constexpr (kVectors < kMaxVectors) dispatch<kVectors + 1>(vectors, params, item, scratch);
}

size_t scratch_bytes(const AttentionParams& params) { return static_cast<size_t>(Scratch().lay_out(params, nullptr)); }

void run_item(const AttentionParams& params, const Item& item, void* memory) {
  Scratch scratch;
  scratch.lay_out(params, memory);
  // The fewest vectors a pass that cover the rows in the fewest passes: 40 rows of 16 lanes are one pass of 3 vectors.
  const int64_t vectors = (item.rows + kLanes - 1) / kLanes;
  const int64_t pass_count = (vectors + kMaxVectors - 1) / kMaxVectors;
  dispatch<1>(static_cast<int>((vectors + pass_count - 1) / pass_count), params, item, scratch);
}

}  // namespace
}  // namespace ortflash::cpu

// The tensors that change scores: tiles of attn_bias and attn_mask. Included after a vec_*.h.
#pragma once

#include <cstdint>

#include "load_tile.h"
#include "pass_rows.h"
#include "tile_softmax.h"

namespace ortflash::cpu {
namespace {

// Where the rows of a pass lie in a broadcastable (B,N,S,T) tensor.
template <int kWidth>
struct ScoreRows {
  int64_t offsets[kWidth];
  int64_t column_stride = 0;
  bool shared = true;  // all rows are the same one, as with a mask of (B,1,1,T)

  void set(const PassRows<kWidth>& rows, const Strides& strides) {
    rows.offsets(strides, offsets);
    column_stride = strides.column;
    shared = true;
    for (int lane = 1; lane < kWidth; ++lane) shared = shared && offsets[lane] == offsets[0];
  }
};

// scores[j][q] += bias of row q and key tile.first + j; `buffer` (keys, kWidth).
template <int kWidth>
void add_bias(const AttentionParams& p, const ScoreRows<kWidth>& rows, int64_t count, KeyRange tile, float* buffer,
              float* scores) {
  const int64_t keys = tile.last - tile.first;
  with_type(p.bias_dtype, p.attn_bias, tile.first * rows.column_stride, [&](const auto* bias) {
    if (rows.shared) {
      load_transposed(bias, rows.offsets, rows.column_stride, 1, keys, 1.0f, kLanes, buffer);
      for (int64_t j = 0; j < keys; ++j) buffer[j] = buffer[j * kLanes];
      add_per_key<kWidth / kLanes>(scores, keys, buffer);
    } else {
      load_transposed(bias, rows.offsets, rows.column_stride, count, keys, 1.0f, kWidth, buffer);
      add_tile(scores, keys * kWidth, buffer);
    }
  });
}

// A tile of attn_mask. It is loaded before the product, so that a tile without a single True is skipped.
template <int kWidth>
class MaskTile {
 public:
  // `buffer` (keys, kWidth) keeps the tile until apply().
  MaskTile(const AttentionParams& p, const ScoreRows<kWidth>& rows, int64_t count, KeyRange tile, float* buffer)
      : keys_(tile.last - tile.first), fill_(p.mask_fill), column_stride_(rows.column_stride) {
    if (p.attn_mask == nullptr) return;
    const uint8_t* mask = p.attn_mask + tile.first * rows.column_stride;
    if (rows.shared) {
      per_key_ = mask + rows.offsets[0];
    } else {
      full_ = buffer;
      load_transposed(reinterpret_cast<const Byte*>(mask), rows.offsets, rows.column_stride, count, keys_, 1.0f, kWidth,
                      buffer);
    }
  }

  // Nothing of this tile takes part. With a finite fill everything does.
  bool empty() const {
    if (fill_ != -kInfinity) return false;
    if (per_key_ != nullptr) {
      for (int64_t j = 0; j < keys_; ++j) {
        if (per_key_[j * column_stride_] != 0) return false;
      }
      return true;
    }
    if (full_ == nullptr) return false;
    Vec sum = zero();
    for (int64_t i = 0; i < keys_ * kWidth; i += kLanes) sum = add(sum, load(full_ + i));
    return !any(less(zero(), sum));
  }

  void apply(float* scores) const { replace(scores, fill_); }

  // values[j][q] = 0 where the mask has False.
  void clear(float* values) const { replace(values, 0.0f); }

 private:
  void replace(float* values, float fill) const {
    if (per_key_ != nullptr) {
      mask_per_key<kWidth / kLanes>(values, keys_, per_key_, column_stride_, fill);
    } else if (full_ != nullptr) {
      mask_tile(values, keys_ * kWidth, full_, fill);
    }
  }

  int64_t keys_;
  float fill_;
  int64_t column_stride_;
  const uint8_t* per_key_ = nullptr;
  const float* full_ = nullptr;
};

}  // namespace
}  // namespace ortflash::cpu

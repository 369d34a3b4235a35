// Dropout's factors (dropout.h) for a tile of weights. Included after a vec_*.h.
#pragma once

#include <cstdint>

#include "../dropout.h"
#include "pass_rows.h"

namespace ortflash::cpu {
namespace {

// factors[j][q] = 1 / (1 - dropout_p) where key tile.first + j is kept in the row of lane q, else 0.
template <int kWidth>
void dropout_factors(const AttentionParams& p, const PassRows<kWidth>& rows, KeyRange tile, float* factors) {
  const PhiloxKey key = dropout_key(p.dropout_seed[0], p.dropout_seed[1]);
  const uint32_t threshold = dropout_threshold(p.dropout_p);
  const float scale = dropout_scale(p.dropout_p);
  const uint32_t batch = static_cast<uint32_t>(rows.batch);
  uint32_t head[kWidth], row[kWidth];
  for (int lane = 0; lane < kWidth; ++lane) {
    head[lane] = static_cast<uint32_t>(rows.head[lane]);
    row[lane] = static_cast<uint32_t>(rows.row[lane]);
  }
  for (int64_t group = tile.first / kDropoutColumns; group * kDropoutColumns < tile.last; ++group) {
    uint32_t words[4][kWidth];
    for (int lane = 0; lane < kWidth; ++lane) {
      const PhiloxWords w = dropout_words(key, batch, head[lane], row[lane], static_cast<uint32_t>(group));
      for (int i = 0; i < 4; ++i) words[i][lane] = w.word[i];
    }
    for (int within = 0; within < kDropoutColumns; ++within) {
      const int64_t column = group * kDropoutColumns + within;
      if (column < tile.first || column >= tile.last) continue;
      float* const to = factors + (column - tile.first) * kWidth;
      for (int lane = 0; lane < kWidth; ++lane) {
        to[lane] = dropout_keeps(words[within / 2][lane], within, threshold) ? scale : 0.0f;
      }
    }
  }
}

// weights[i] *= factors[i]
inline void drop(float* weights, int64_t count, const float* factors) {
  for (int64_t i = 0; i < count; i += kLanes) store(weights + i, mul(load(weights + i), load(factors + i)));
}

}  // namespace
}  // namespace ortflash::cpu

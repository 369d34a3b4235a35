// The two matrix products of a tile for a handful of queries, as in decoding one token. Here vectors lie along the head
// size, so that no lane is idle; what happens between the products is the same code (scores[j][q], one vector a key).
// Included after a vec_*.h.
#pragma once

#include <cstdint>

#include "tile_kernel.h"

namespace ortflash::cpu {
namespace {

static_assert(kLanes % kFewQueries == 0, "kLanes sums fill one vector");

// scores[j][q] = sum_d key[j][d] query[q][d] for `keys` keys and kRows queries. D is a multiple of kLanes; query has
// rows of D; scores has rows of kLanes, whose lanes past kRows are left as they are.
template <int kRows>
void score_few(const float* key, int64_t key_stride, int64_t keys, const float* query, int64_t head_size,
               float* scores) {
  constexpr int kKeys = kLanes / kRows;  // keys at a time: kLanes sums
  for (int64_t j = 0; j < keys; j += kKeys) {
    const int64_t left = keys - j < kKeys ? keys - j : kKeys;
    const float* row[kKeys];
    Vec sums[kLanes];
    for (int k = 0; k < kKeys; ++k) row[k] = key + (j + (k < left ? k : 0)) * key_stride;
    for (int i = 0; i < kLanes; ++i) sums[i] = zero();
    for (int64_t d = 0; d < head_size; d += kLanes) {
      for (int k = 0; k < kKeys; ++k) {
        const Vec x = load(row[k] + d);
        for (int r = 0; r < kRows; ++r) {
          sums[k * kRows + r] = fma(x, load(query + r * head_size + d), sums[k * kRows + r]);
        }
      }
    }
    transpose(sums);  // lane i of every vector now belongs to sum i
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) sums[i] = add(sums[i], sums[i + width]);
    }
    alignas(64) float sum[kLanes];
    store(sum, sums[0]);
    for (int64_t k = 0; k < left; ++k) {
      for (int r = 0; r < kRows; ++r) scores[(j + k) * kLanes + r] = sum[k * kRows + r];
    }
  }
}

// output[q][e] = correction[q] output[q][e] + sum_j weights[j][q] value[j][e] for kVectors vectors of e.
template <int kRows, int kVectors>
inline void output_few_columns(const float* value, int64_t value_stride, int64_t keys, const float* weights,
                               const float* correction, int64_t output_stride, float* output) {
  Vec sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = zero();
  }
  for (int64_t j = 0; j < keys; ++j) {
    Vec x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = load(value + j * value_stride + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = broadcast(weights[j * kLanes + r]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(weight, x[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* out = output + r * output_stride + v * kLanes;
      store(out, fma(broadcast(correction[r]), load(out), sums[r][v]));
    }
  }
}

// output[q][e] = correction[q] output[q][e] + sum_j weights[j][q] value[j][e] for the columns from e on, kVectors
// vectors at a time and then fewer; E is a multiple of kLanes and the row length of output; weights has rows of kLanes.
template <int kRows, int kVectors>
void output_few_from(int64_t e, const float* value, int64_t value_stride, int64_t keys, const float* weights,
                     const float* correction, int64_t v_head_size, float* output) {
  for (; e + kVectors * kLanes <= v_head_size; e += kVectors * kLanes) {
    output_few_columns<kRows, kVectors>(value + e, value_stride, keys, weights, correction, v_head_size, output + e);
  }
  if constexpr (kVectors > 1) {
    output_few_from<kRows, kVectors / 2>(e, value, value_stride, keys, weights, correction, v_head_size, output);
  }
}

template <int kRows>
void output_few(const float* value, int64_t value_stride, int64_t keys, const float* weights, const float* correction,
                int64_t v_head_size, float* output) {
  // Eight sums hide the latency of the fma.
  output_few_from<kRows, 8 / kRows>(0, value, value_stride, keys, weights, correction, v_head_size, output);
}

}  // namespace
}  // namespace ortflash::cpu

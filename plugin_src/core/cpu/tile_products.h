// The two matrix products of a tile, transposed: queries lie along the vector lanes, so keys and values are read as
// scalars from wherever they are and neither has to be packed. Included after a vec_*.h.
#pragma once

#include <cstdint>

namespace ortflash::cpu {
namespace {

// Rows of accumulators beside kVectors vectors.
template <int kVectors>
constexpr int product_rows() {
  constexpr int fitting = kProductRows * kMaxVectors / kVectors;
  return fitting < 12 ? fitting : 12;
}

// scores[j][q] = sum_d key[j][d] query_t[d][q] for kRows keys; query_t (D, kVectors * kLanes), scores likewise.
template <int kVectors, int kRows>
inline void score_rows(const float* key, int64_t key_stride, const float* query_t, int64_t head_size, float* scores) {
  Vec sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = zero();
  }
  for (int64_t d = 0; d < head_size; ++d) {
    Vec query[kVectors];
    for (int v = 0; v < kVectors; ++v) query[v] = load(query_t + (d * kVectors + v) * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec k = broadcast(key[r * key_stride + d]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(k, query[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store(scores + (r * kVectors + v) * kLanes, sums[r][v]);
  }
}

// scores[j][q] = sum_d key[j][d] query_t[d][q] for `keys` keys.
template <int kVectors>
void score_tile(const float* key, int64_t key_stride, int64_t keys, const float* query_t, int64_t head_size,
                float* scores) {
  constexpr int kRows = product_rows<kVectors>();
  constexpr int64_t kWidth = kVectors * kLanes;
  int64_t j = 0;
  for (; j + kRows <= keys; j += kRows) {
    score_rows<kVectors, kRows>(key + j * key_stride, key_stride, query_t, head_size, scores + j * kWidth);
  }
  for (; j + 4 <= keys; j += 4) {
    score_rows<kVectors, 4>(key + j * key_stride, key_stride, query_t, head_size, scores + j * kWidth);
  }
  for (; j < keys; ++j) {
    score_rows<kVectors, 1>(key + j * key_stride, key_stride, query_t, head_size, scores + j * kWidth);
  }
}

// output_t[e][q] = correction[q] output_t[e][q] + sum_j value[j][e] weights[j][q] for kRows columns e of value.
// The tile's own sum starts at 0, so that rounding errors grow with the tile plus the number of tiles, not with T.
template <int kVectors, int kRows>
inline void output_rows(const float* value, int64_t value_stride, int64_t keys, const float* weights,
                        const float* correction, float* output_t) {
  Vec sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = zero();
  }
  for (int64_t j = 0; j < keys; ++j) {
    Vec weight[kVectors];
    for (int v = 0; v < kVectors; ++v) weight[v] = load(weights + (j * kVectors + v) * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec x = broadcast(value[j * value_stride + r]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(x, weight[v], sums[r][v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const Vec factor = load(correction + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      float* out = output_t + (r * kVectors + v) * kLanes;
      store(out, fma(factor, load(out), sums[r][v]));
    }
  }
}

// output_t[e][q] = correction[q] output_t[e][q] + sum_j value[j][e] weights[j][q]; output_t (E, kVectors * kLanes).
template <int kVectors>
void output_tile(const float* value, int64_t value_stride, int64_t keys, const float* weights, const float* correction,
                 int64_t v_head_size, float* output_t) {
  constexpr int kRows = product_rows<kVectors>();
  constexpr int64_t kWidth = kVectors * kLanes;
  int64_t e = 0;
  for (; e + kRows <= v_head_size; e += kRows) {
    output_rows<kVectors, kRows>(value + e, value_stride, keys, weights, correction, output_t + e * kWidth);
  }
  for (; e + 4 <= v_head_size; e += 4) {
    output_rows<kVectors, 4>(value + e, value_stride, keys, weights, correction, output_t + e * kWidth);
  }
  for (; e < v_head_size; ++e) {
    output_rows<kVectors, 1>(value + e, value_stride, keys, weights, correction, output_t + e * kWidth);
  }
}

}  // namespace
}  // namespace ortflash::cpu

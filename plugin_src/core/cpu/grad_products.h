// The matrix products of the gradients: out = A B or out += A B in fp32, B's columns along the vector lanes, A read one
// scalar at a time with any strides, so that no operand of the five is transposed. Included after a vec_*.h.
#pragma once

#include <cstdint>

#include "tile_products.h"

namespace ortflash::cpu {
namespace {

// A as A[r][k] = data[r * row + k * step].
struct LeftFactor {
  const float* data;
  int64_t row, step;
};

// kRows rows and kVectors vectors of columns. The sum over k starts at 0 and is added to `out` in the end, so that
// rounding errors grow with a tile's depth plus the number of tiles.
template <bool kAdd, int kVectors, int kRows>
inline void product_block(LeftFactor a, int64_t depth, const float* b, int64_t b_stride, float* out,
                          int64_t out_stride) {
  Vec sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = zero();
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vec row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = load(b + k * b_stride + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec x = broadcast(a.data[r * a.row + k * a.step]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(x, row[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* const to = out + r * out_stride + v * kLanes;
      store(to, kAdd ? add(load(to), sums[r][v]) : sums[r][v]);
    }
  }
}

template <bool kAdd, int kVectors>
void product_columns(LeftFactor a, int64_t rows, int64_t depth, const float* b, int64_t b_stride, float* out,
                     int64_t out_stride) {
  constexpr int kRows = product_rows<kVectors>();
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    product_block<kAdd, kVectors, kRows>({a.data + r * a.row, a.row, a.step}, depth, b, b_stride, out + r * out_stride,
                                         out_stride);
  }
  for (; r < rows; ++r) {
    product_block<kAdd, kVectors, 1>({a.data + r * a.row, a.row, a.step}, depth, b, b_stride, out + r * out_stride,
                                     out_stride);
  }
}

// out[r][c] (+)= sum_k a[r][k] b[k][c] for `columns`, a multiple of kLanes; kVectors vectors at a time and then fewer.
template <bool kAdd, int kVectors = kMaxVectors>
void product(LeftFactor a, int64_t rows, int64_t depth, const float* b, int64_t b_stride, int64_t columns, float* out,
             int64_t out_stride) {
  int64_t c = 0;
  for (; c + kVectors * kLanes <= columns; c += kVectors * kLanes) {
    product_columns<kAdd, kVectors>(a, rows, depth, b + c, b_stride, out + c, out_stride);
  }
  if constexpr (kVectors > 1) {
    if (c < columns) product<kAdd, kVectors - 1>(a, rows, depth, b + c, b_stride, columns - c, out + c, out_stride);
  }
}

}  // namespace
}  // namespace ortflash::cpu

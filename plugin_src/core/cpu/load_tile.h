// Moving tiles between tensors of any type and fp32 scratch, straight or transposed. Included after a vec_*.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "../attention.h"

namespace ortflash::cpu {
namespace {

// Storage types, so that overloads can tell fp16, bf16 and bool bytes apart.
struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};
struct Byte {
  uint8_t value;
};

inline Vec load_vector(const float* p) { return load(p); }
inline Vec load_vector(const Half* p) { return load_half(&p->bits); }
inline Vec load_vector(const BFloat* p) { return load_bfloat(&p->bits); }
inline Vec load_vector(const Byte* p) { return load_bytes(&p->value); }
inline void store_vector(float* p, Vec x) { store(p, x); }
inline void store_vector(Half* p, Vec x) { store_half(&p->bits, x); }
inline void store_vector(BFloat* p, Vec x) { store_bfloat(&p->bits, x); }

// `count` < kLanes elements and zeros; reads nothing past them.
template <class T>
inline Vec load_some(const T* p, int64_t count) {
  T copy[kLanes] = {};
  std::memcpy(copy, p, static_cast<size_t>(count) * sizeof(T));
  return load_vector(copy);
}
template <class T>
inline void store_some(T* p, Vec x, int64_t count) {
  T copy[kLanes];
  store_vector(copy, x);
  std::memcpy(p, copy, static_cast<size_t>(count) * sizeof(T));
}

// to[r][c] = from[r][c]; `to` has rows of `width` >= columns elements, of which those past `columns` become 0.
template <class T>
void load_rows(const T* from, int64_t row_stride, int64_t rows, int64_t columns, int64_t width, float* to) {
  for (int64_t r = 0; r < rows; ++r, from += row_stride, to += width) {
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) store(to + c, load_vector(from + c));
    if (c == columns) continue;
    const Vec last = load_some(from + c, columns - c);
    if (c + kLanes <= width) {
      store(to + c, last);
    } else {
      store_some(to + c, last, columns - c);
    }
  }
}

// to[c][r] = factor * from[offsets[r] + c * column_stride]; `to` (columns, width), width a multiple of kLanes and at
// least `rows`. Rows from `rows` to `width` become 0.
template <class T>
void load_transposed(const T* from, const int64_t* offsets, int64_t column_stride, int64_t rows, int64_t columns,
                     float factor, int64_t width, float* to) {
  for (int64_t r = 0; r < width; r += kLanes) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      const int64_t some = columns - c < kLanes ? columns - c : kLanes;
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        if (r + i >= rows) {
          block[i] = zero();
          continue;
        }
        const T* row = from + offsets[r + i] + c * column_stride;
        if (column_stride != 1) {
          T gathered[kLanes] = {};
          for (int64_t k = 0; k < some; ++k) gathered[k] = row[k * column_stride];
          block[i] = load_vector(gathered);
        } else {
          block[i] = some == kLanes ? load_vector(row) : load_some(row, some);
        }
      }
      transpose(block);
      for (int64_t k = 0; k < some; ++k) store(to + (c + k) * width + r, mul(block[k], broadcast(factor)));
    }
  }
}

// to[offsets[r] + c] = from[c][r] * factors[r]; `from` (columns, width) as load_transposed leaves it.
template <class T>
void store_transposed(const float* from, int64_t width, const float* factors, int64_t rows, int64_t columns, T* to,
                      const int64_t* offsets) {
  // Output rows of several heads lie far apart: ask for all of them before the first is written.
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += kLine) __builtin_prefetch(to + offsets[r] + c, 1);
  }
  for (int64_t r = 0; r < rows; r += kLanes) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      const int64_t some = columns - c < kLanes ? columns - c : kLanes;
      Vec block[kLanes];
      for (int k = 0; k < kLanes; ++k) {
        block[k] = k < some ? mul(load(from + (c + k) * width + r), load(factors + r)) : zero();
      }
      transpose(block);
      for (int i = 0; i < kLanes && r + i < rows; ++i) {
        T* row = to + offsets[r + i] + c;
        if (some == kLanes) {
          store_vector(row, block[i]);
        } else {
          store_some(row, block[i], some);
        }
      }
    }
  }
}

// to[c] = factor * from[c]
template <class T>
void store_row(const float* from, float factor, int64_t columns, T* to) {
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) store_vector(to + c, mul(load(from + c), broadcast(factor)));
  if (c < columns) store_some(to + c, mul(load_some(from + c, columns - c), broadcast(factor)), columns - c);
}

// Calls function(pointer of the storage type) for a pointer of a run-time type, `offset` elements on.
template <class Function>
inline void with_type(DType dtype, const void* data, int64_t offset, Function function) {
  switch (dtype) {
    case DType::kFloat32:
      return function(static_cast<const float*>(data) + offset);
    case DType::kFloat16:
      return function(static_cast<const Half*>(data) + offset);
    case DType::kBFloat16:
      return function(static_cast<const BFloat*>(data) + offset);
  }
}
template <class Function>
inline void with_type(DType dtype, void* data, int64_t offset, Function function) {
  switch (dtype) {
    case DType::kFloat32:
      return function(static_cast<float*>(data) + offset);
    case DType::kFloat16:
      return function(static_cast<Half*>(data) + offset);
    case DType::kBFloat16:
      return function(static_cast<BFloat*>(data) + offset);
  }
}

}  // namespace
}  // namespace ortflash::cpu

// fp32 queries, keys and values as sums of bf16 numbers, for kernels that multiply pieces (Math::kBf16x2, kBf16x3).
//
//   x = p0 + p1 (+ p2)      p0 = bf16(x)   p1 = bf16(x - p0)   p2 = bf16(x - p0 - p1)
//
// Two pieces hold 16 bits of the mantissa, three all 24, and each has fp32's range, so that nothing needs a scale. They
// are made once a call, in the workspace: a tile of keys is read by many tiles of queries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../attention.h"

namespace ortflash::sm80 {

// Queries up to this long leave a tile of 128 rows mostly empty, and cutting would cost more than it brings.
constexpr int64_t kSmallTile = 64;
constexpr int64_t kMaxPieceHeadSize = 256;

// Elements from one piece of a row to the next: whole 16-byte copies.
constexpr int64_t piece_columns(int64_t size) { return (size + 7) / 8 * 8; }

// Where the pieces lie in the workspace, in bytes: (B,N,S,pieces,D), (B,M,T,pieces,D), (B,M,T,pieces,E), sizes D and E
// rounded up. All 0 where a call isn't cut.
struct PieceLayout {
  int64_t count = 0;  // pieces of an element
  size_t query = 0, key = 0, value = 0;
  size_t bytes = 0;
};

// Depends on sizes, type, `precise` and whether there is dropout, and grows with each size.
inline PieceLayout piece_layout(const AttentionParams& a) {
  PieceLayout layout;
  if (a.dtype != DType::kFloat32 || a.dropout_p > 0 || a.q_len <= kSmallTile ||
      std::max(a.head_size, a.v_head_size) > kMaxPieceHeadSize) {
    return layout;
  }
  layout.count = a.precise ? 3 : 2;
  const auto place = [&](size_t* offset, int64_t rows, int64_t size) {
    *offset = layout.bytes;
    layout.bytes += static_cast<size_t>((rows * layout.count * piece_columns(size) * 2 + 255) / 256 * 256);
  };
  place(&layout.query, a.batch * a.num_heads * a.q_len, a.head_size);
  place(&layout.key, a.batch * a.kv_num_heads * a.kv_len, a.head_size);
  place(&layout.value, a.batch * a.kv_num_heads * a.kv_len, a.v_head_size);
  return layout;
}

// Enqueues the cutting of query, key and value into `workspace`. stream: a cudaStream_t.
Status cut_operands(const AttentionParams& a, const PieceLayout& layout, void* workspace, void* stream);

}  // namespace ortflash::sm80

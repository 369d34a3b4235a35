// Which keys a query row may see, before any mask tensor: causal diagonal, window and key_lengths as one interval.
// Included by each instruction set's own file, hence the anonymous namespace: a function that two of them share would
// be compiled with the flags of either.
#pragma once

#include <cstdint>

#include "../attention.h"
#include "tile_kernel.h"

namespace ortflash::cpu {
namespace {

// keys_of(b) = clamp(key_lengths[b], 0, T), or T.
inline int64_t keys_in_batch(const AttentionParams& p, int64_t batch) {
  if (p.key_lengths == nullptr) return p.kv_len;
  const int64_t length = p.key_lengths[batch * p.key_lengths_stride];
  return length < 0 ? 0 : (length < p.kv_len ? length : p.kv_len);
}

// Row i stands at diag = i + offset, offset = 0 (top left) or keys_of(b) - S (bottom right). It sees
//   max(0, diag - window_left) <= j < min(keys_of(b), diag + 1 if causal, diag + window_right + 1).
inline KeyRange key_range(const AttentionParams& p, int64_t keys, int64_t row) {
  const bool bottom_right = p.causal_alignment == CausalAlignment::kBottomRight;
  const int64_t diagonal = row + (bottom_right ? keys - p.q_len : 0);
  KeyRange range{0, keys};
  if (p.is_causal && diagonal + 1 < range.last) range.last = diagonal + 1;
  // Written as differences that can't overflow: windows are any 63-bit number.
  if (p.window_right >= 0 && p.window_right < range.last - 1 - diagonal) range.last = diagonal + p.window_right + 1;
  if (p.window_left >= 0 && p.window_left < diagonal) range.first = diagonal - p.window_left;
  if (range.last < range.first) range.last = range.first;
  return range;
}

}  // namespace
}  // namespace ortflash::cpu

// Workspace for a whole range of calls, known without a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/attention.h"

namespace ortflash::trt {

// Bytes that suffice for every call whose sizes lie between those of `smallest` and `largest`, on whatever GPU.
//
// An engine's workspace is fixed when it is built, often on another GPU or none, and for a whole range of shapes. The
// core's need isn't monotonic: only queries of up to 16 rows have their keys split, and then each split keeps a partial
// row of E + 1 floats. By sm80/plan.cc, keys are split only as far as tiles * splits < 2 * multiprocessors + tiles with
// tiles < 2 * multiprocessors, where a tile holds the rows of at most N / M heads, and never below 4 tiles of 16 keys.
inline size_t workspace_bound(const AttentionParams& smallest, const AttentionParams& largest) {
  constexpr int64_t kShortQuery = 16;
  constexpr int64_t kMultiprocessors = 256;  // of the largest GPU that there may be; today's have up to 160
  constexpr int64_t kKeysPerSplit = 4 * 16;
  constexpr int64_t kMaxSplits = 128;
  if (smallest.q_len > kShortQuery || largest.kv_len <= kKeysPerSplit) return 0;
  const int64_t q_len = std::min(largest.q_len, kShortQuery);
  const int64_t group = std::max<int64_t>(1, largest.num_heads / std::max<int64_t>(1, largest.kv_num_heads));
  const int64_t splits = std::min(kMaxSplits, (largest.kv_len + kKeysPerSplit - 1) / kKeysPerSplit);
  const int64_t rows = std::min(splits * largest.batch * largest.num_heads, 4 * kMultiprocessors * group) * q_len;
  return static_cast<size_t>(rows * (largest.v_head_size + 1)) * sizeof(float);
}

}  // namespace ortflash::trt

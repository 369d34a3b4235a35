// How the gradients of a call are cut into items for threads to take. Nothing here depends on the number of threads or
// on the instruction set, and so no rounding does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../attention_grad.h"
#include "tile_kernel.h"

namespace ortflash::cpu {

constexpr int64_t kGradRows = 64;  // most query rows of a tile
constexpr int64_t kGradKeys = 64;  // keys of a tile

// Columns of the fp32 copies of rows: whole vectors on every instruction set. Without linkage, like everything that the
// instruction sets' files share.
static constexpr int64_t padded_size(int64_t head_size) { return (head_size + 15) / 16 * 16; }

struct GradPlan {
  int64_t tile_rows;   // query rows of a tile; one tile lies in one block of block_mask
  int64_t row_tiles;   // of a head
  int64_t chunk_keys;  // keys whose rows and gradients a thread holds at once
  int64_t chunks;      // of a head
  int64_t splits;  // items of a key/value head: split s takes the chunks s, s + splits, ... and sums its own d_query

  // d_attn_bias: each item owns one tile of it, or all rows or columns where the bias is broadcast along them.
  int64_t bias_batches, bias_heads, bias_row_tiles, bias_key_tiles;

  int64_t bias_items() const;
};

GradPlan make_grad_plan(const AttentionGradParams& params);

// Rows of tile `tile` of a query head, as the forward's helpers take them.
Item row_item(const AttentionParams& params, const GradPlan& plan, int64_t batch, int64_t head, int64_t tile);

// One call and its part of the workspace that all threads share, in fp32.
struct GradCall {
  const AttentionGradParams& params;
  GradPlan plan;
  float* delta = nullptr;       // (B,N,S): rowsum(d_output * output)
  float* row_factor = nullptr;  // (B,N,S): what exp(S - softmax_lse) is multiplied by: 1, or see kLargeLse
  float* d_query = nullptr;     // (splits,B,N,S,padded D): d_query / scale from each split's keys

  explicit GradCall(const AttentionGradParams& p);

  // Lays the buffers out from `start`; returns the bytes they take, a multiple of 256. A null start only counts.
  size_t lay_out(void* start);

  int64_t row_index(int64_t batch, int64_t head, int64_t row) const;                   // in delta and row_factor
  float* d_query_rows(int64_t split, int64_t batch, int64_t head, int64_t row) const;  // from `row` on
};

}  // namespace ortflash::cpu

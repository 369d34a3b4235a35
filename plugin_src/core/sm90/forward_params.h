// What the kernel is told: sizes, limits and the pointers that don't go through a tensor map.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ortflash::sm90 {

// Past every row and column number, and far from overflow when one is added.
constexpr int32_t kUnbounded = 1 << 29;

// How attn_bias or attn_mask reaches the scores.
enum class TermSource : int32_t {
  kNone,
  kTile,      // streamed as tiles by the copy engine: 16-bit bias or mask whose strides are multiples of 16 bytes
  kKeys,      // one row for all rows of the head, a mask with fill -inf: a vector that the loading warp makes
  kElements,  // any strides
};

struct Term {
  const void* data;          // broadcast to (B,N,S,T)
  int64_t batch, head, row;  // strides in elements, 0 = broadcast
  int32_t column;            // 0 or 1
  TermSource source;
  int32_t tile_batch, tile_head;  // kTile: 1, or 0 where that axis is broadcast
  int32_t is_float32;             // attn_bias only: fp32, else the query's type
};

struct ForwardParams {
  int32_t q_len, kv_len;
  int32_t v_head_size;
  int32_t num_heads, heads_per_kv;

  // Tiles and their order, see schedule.cuh.
  int32_t q_tiles;         // of one head
  int32_t head_count;      // batch * num_heads
  int32_t section_heads;   // heads in a section
  int32_t section_rounds;  // rounds in which a section is dealt to the blocks
  int32_t heads_fastest;   // inside a section: all heads' first tiles, then their second ones
  int32_t longest_first;   // last rows first

  // Row i sees keys j with i + offset - left <= j < i + offset + right + 1, offset = 0 or keys - q_len.
  int32_t left, right;  // kUnbounded = no limit
  int32_t bottom_right;

  void* output;                                   // (B,N,S,E)
  int64_t output_batch, output_head, output_row;  // strides in elements
  float* softmax_lse;                             // (B,N,S), or null

  const int32_t* key_lengths;  // or null
  int32_t key_lengths_stride;
  const float* sinks;  // or null
  int32_t sinks_stride;

  float scale;       // of the scores
  float scale_log2;  // what the exponent is multiplied by: scale * log2(e), or log2(e) where Tile::SCALED

  // Only for kernels that know them.
  float softcap;  // 0 = off
  float mask_fill;
  Term bias, mask;
  const uint8_t* block_mask;                                  // or null
  int64_t block_mask_batch, block_mask_head, block_mask_row;  // strides in elements
  int32_t block_mask_column;
  int32_t block_shift;  // log2(block_size)
};

// Tensor maps of (batch, head, row, column) views.
struct ForwardMaps {
  CUtensorMap query;  // box: 64 rows x 64 columns
  CUtensorMap key;    // box: BLOCK_KV rows x 64 columns
  CUtensorMap value;
  CUtensorMap bias;  // box: 64 rows x 64 columns; only with TermSource::kTile
  CUtensorMap mask;  // box: 64 rows x BLOCK_KV columns, bytes
};

}  // namespace ortflash::sm90

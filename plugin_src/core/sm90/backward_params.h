// What the kernels of the gradients are told.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "../attention.h"

namespace ortflash::sm90 {

struct BackwardParams {
  int32_t batch, q_len, kv_len, head_size;
  int32_t num_heads, group;           // group: query heads of a key/value head
  int32_t query_tiles, padded_q_len;  // of one head, in tiles of the kernel's BLOCK_Q rows
  int32_t key_tiles;
  int32_t section_heads;  // key/value heads in a section: see KeyTile
  int32_t global_tiles;   // of a head's first keys, which in BigBird's and Longformer's patterns all rows see

  // Row i sees keys j with i + low <= j < i + high; where rows end with keys (bottom_right), of kv_len keys.
  int32_t low, high;
  int32_t bottom_right;

  float scale, scale_log2;  // of Q K^T; scale * log2(e)

  const float* softmax_lse;       // (B,N,S)
  const void *output, *d_output;  // (B,N,S,E)
  Strides output_strides, d_output_strides;
  void *d_query, *d_key, *d_value;  // (B,N,S,D), (B,M,T,D), (B,M,T,E)
  Strides d_query_strides, d_key_strides, d_value_strides;

  // Only for kernels that know them.
  const int32_t* key_lengths;  // or null
  int32_t key_lengths_stride;
  const uint8_t* mask;  // one row for all rows of a head, or null
  int64_t mask_batch, mask_head, mask_column;
  const uint8_t* block_mask;  // of blocks that hold whole tiles, or null
  Strides block_mask_strides;
  int32_t block_shift;  // log2(block_size)

  // In the workspace.
  float* lse_log2;     // (B*N, padded_q_len): softmax_lse * log2(e); +inf where nothing takes part and past q_len
  float* delta;        // (B*N, padded_q_len): rowsum(d_output * output); 0 past q_len
  float* d_query_sum;  // (B*N, query_tiles, 2 warpgroups, 8, 128 threads, 4): dQ / scale as the warpgroups hold it
};

// Tensor maps of (batch, head, row, column) views.
struct BackwardMaps {
  CUtensorMap query, d_output;  // box: BLOCK_Q rows x 64 columns
  CUtensorMap key, value;       // box: BLOCK_KV rows x 64 columns
};

}  // namespace ortflash::sm90

// AttentionParams as the CUDA kernels read them: checked, with sizes in 32 bits and every flag resolved to numbers.
#pragma once

#include <cstdint>

#include "attention.h"

namespace ortflash {

// Stands for "no bound" in key positions. q_len and kv_len stay below it, so sums of two positions fit an int.
constexpr int kUnbounded = 1 << 30;

struct KernelParams {
  const void* query;                                                  // (B,N,S,D)
  const void* key;                                                    // (B,M,T,D)
  const void* value;                                                  // (B,M,T,E)
  void* output;                                                       // (B,N,S,E)
  float* lse;                                                         // (B,N,S) contiguous, or null
  Strides query_strides, key_strides, value_strides, output_strides;  // in elements

  const void* bias;  // broadcast to (B,N,S,T), or null
  Strides bias_strides;
  const uint8_t* mask;  // broadcast to (B,N,S,T), or null
  Strides mask_strides;
  const uint8_t* block_mask;  // broadcast to (B,N,ceil(S/block_size),ceil(T/block_size)), or null
  Strides block_mask_strides;
  const int32_t* key_lengths;  // (B,) or one element, or null
  const float* sinks;          // (N,) or one element, or null

  // Split over keys: (splits, B*N*S) rows of v_head_size floats, then (splits, B*N*S) log2-sum-exps. Null: no split.
  float* partial_output;
  float* partial_lse;

  int batch, num_heads, q_len, kv_len, head_size, v_head_size;
  int group;              // query heads to a key/value head
  int packed_heads;       // query heads whose rows share a tile: 1, or `group` where q_len is short
  int row_tiles;          // query tiles of one (batch, head pack)
  int heads_per_section;  // head packs whose keys and values share L2: tiles are ordered within such sections
  int value_splits;       // tiles of value columns: more than 1 where v_head_size is past the kernel's columns
  int key_splits;         // parts of the keys, each with its own partial result
  int key_lengths_stride, sinks_stride;
  int block_size;
  int bias_bytes;            // of one element: 2 (the query's type) or 4 (fp32)
  int bias_rows, mask_rows;  // rows of a tile in shared memory: 1 where all rows are the same, 0 where there is none
  int bias_copy, mask_copy;  // bytes to a copy: 16 (rows skewed to alignment), or 0 = one element at a time
  int query_copy, key_copy, value_copy;  // bytes to a copy: 16, 8, 4, or 0 = one element at a time
  int reach_left, reach_right;           // row i sees keys from i + offset - reach_left to i + offset + reach_right
  bool bottom_right;                     // offset = keys - q_len instead of 0
  bool output_pairs;                     // two adjacent output elements may be stored together
  float scale;                           // factor on query @ key^T
  float softcap, softcap_inverse;        // 0 = off
  float mask_fill;
};

}  // namespace ortflash

// AttentionParams as the CUDA kernels read them: checked, with sizes in 32 bits and every flag resolved to numbers.
#pragma once

#include <vector_types.h>

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

  // Split over keys, or null: each split's sum of weights * values, (splits, B*N*S, E); and its maximum and its sum of
  // weights, (splits, B*N*S) pairs. (Not their log-sum-exp, in which a maximum of -3.4e38 would swallow the sum.)
  float* partial_output;
  float2* partial_state;

  int batch, num_heads, q_len, kv_len, head_size, v_head_size;
  int group;              // query heads to a key/value head
  int packed_heads;       // query heads whose rows share a tile: 1, or `group` where q_len is short
  int row_tiles;          // query tiles of one (batch, head pack)
  int heads_per_section;  // head packs whose keys and values share L2: tiles are ordered within such sections
  int value_splits;       // tiles of value columns: more than 1 where v_head_size is past the kernel's columns
  int key_splits;         // parts of the keys, each with its own partial result
  int key_lengths_stride, sinks_stride;
  int block_size;
  int bias_bytes;                        // of one element: 2 (the query's type) or 4 (fp32)
  bool bias_vector, mask_vector;         // four adjacent elements, aligned, may be loaded together
  int query_copy, key_copy, value_copy;  // bytes to a copy: 16, 8, 4, or 0 = one element at a time
  int piece_columns, v_piece_columns;    // elements between the pieces of a row (sm80/pieces.h)
  int reach_left, reach_right;           // row i sees keys from i + offset - reach_left to i + offset + reach_right
  bool bottom_right;                     // offset = keys - q_len instead of 0
  int output_store;                      // bytes of adjacent output elements that may be stored together: 16, 8, 4 or 0
  float scale;                           // on query @ key^T
  float factor, to_natural;              // of the softmax (online_softmax.cuh)
  float softcap, softcap_inverse;        // 0 = off
  float mask_fill;

  const int64_t* dropout_seed;  // (2,): seed, offset; read by kernels with dropout only
  uint32_t dropout_threshold;   // dropout.h
  float dropout_scale;
};

}  // namespace ortflash

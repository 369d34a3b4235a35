// What the kernels of the backward are told, beyond what the forward's are.
#pragma once

#include "../kernel_params.h"

namespace ortflash::sm80 {

// Every kernel keeps a tile of its own rows and walks over the others:
//   kKeys     own: K, V   others: Q, dO   dV = sum (P Z)^T dO, dK = sum dX^T Q
//   kQueries  own: Q, dO  others: K, V    dQ = sum dX K
//   kBias     own: Q, dO  others: K, V    d_bias = sum dS
enum class Gradient { kKeys, kQueries, kBias };

// A gradient that a kernel writes, as a (batch, head, row, column) view.
struct GradientRows {
  void* data;
  Strides strides;  // in elements
  bool by_pair;     // two adjacent columns, the first one even, may be stored together
};

// Statistics of the rows of queries, (3, B*N*S) fp32, in the workspace. With them P = exp(S - lse) * exp2(correction).
struct RowStatistics {
  float* lse;         // softmax_lse; +inf where nothing takes part, so that P is 0
  float* correction;  // 0; in rows with a large softmax_lse -log2 of what exp(S - lse) sums up to
  float* delta;       // rowsum(d_output * output)
};

struct BackwardParams {
  KernelParams forward;  // output and lse are inputs
  const void* d_output;  // (B,N,S,E)
  Strides d_output_strides;
  int d_output_copy;  // as KernelParams::query_copy
  RowStatistics rows;
  GradientRows d_query, d_key, d_value;
  int key_tiles, query_tiles;  // of one head, in the kernel that is launched

  const int64_t* dropout_seed;  // (2,), or null: no dropout
  uint32_t dropout_threshold;   // dropout.h
  float dropout_scale;

  void* d_bias;  // in forward.bias_bytes, or null
  Strides d_bias_strides;
  float* d_sinks;  // (N,) or one element, or null
};

}  // namespace ortflash::sm80

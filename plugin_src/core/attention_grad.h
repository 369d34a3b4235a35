// The gradients of attention.h's forward: one parameter struct and four entries beside the forward's.
//
//   P      = exp(S - softmax_lse)                  recomputed tile by tile from query, key, bias and masks; 0 outside
//   Z      = keep / (1 - dropout_p)                dropout.h; 1 where dropout_p == 0
//   delta  = rowsum(d_output * output)             = rowsum(P * dP), also with sinks and with dropout
//   dV     = (P * Z)^T d_output                    summed over the query heads of a key/value head
//   dP     = Z * (d_output V^T)
//   dS     = P * (dP - delta)                      of the masked, biased, capped scores
//   d_bias = dS where attn_mask keeps, else 0      summed over the axes along which attn_bias is broadcast
//   dX     = scale * d_bias * (1 - tanh^2(X / cap))  X = scale * Q K^T; the last factor is 1 where cap == 0
//   dQ     = dX K        dK = dX^T Q
//   d_sink = -sum over batch and rows of exp(sink - softmax_lse) * delta
//
// An element that attn_mask replaces with a finite mask_fill still weighs its value (dV), but passes nothing on to the
// query, the key and the bias. A row in which nothing takes part (softmax_lse = -inf) gives zero gradients, never NaN:
// test for it before S - softmax_lse is formed. P, dP, dS and every sum over rows, keys, heads or batch are fp32
// whatever the inputs; factors of a product may be rounded to the inputs' type first.
//
// Where |softmax_lse| is large, its own rounding is no longer small against the log of a sum: a row whose scores are
// all -3.4e38 (a bias of the type's lowest value in a padded row) has weights 1/T, but S - softmax_lse = 0 for each.
// So in rows with |softmax_lse| >= kLargeLse P must be divided by its own row sum (+ exp(sink - softmax_lse)).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.h"

namespace ortflash {

constexpr float kLargeLse = 4096.0f;  // half an ulp of it is 2.4e-4: less than a half type's rounding of P

// Letters as in attention.h. Every tensor lies on the device of the execution.
struct AttentionGradParams {
  // The forward call whose gradients these are, with the same tensors, attributes and dropout_seed. `output` and
  // `softmax_lse` (both required) are read and not written.
  AttentionParams forward;

  const void* d_output = nullptr;  // (B,N,S,E), forward.dtype
  Strides d_output_strides;        // columns contiguous

  // Overwritten, not added to. Required. forward.dtype; columns contiguous; elements don't overlap each other.
  void* d_query = nullptr;  // (B,N,S,D)
  void* d_key = nullptr;    // (B,M,T,D): summed over the N / M query heads that read it
  void* d_value = nullptr;  // (B,M,T,E): likewise
  Strides d_query_strides, d_key_strides, d_value_strides;

  // Gradient of attn_bias in its own type (forward.bias_dtype) and its own shape, or null = not asked for. Overwritten.
  // A stride is 0 exactly where forward.bias_strides' is (or the axis has one element): the gradient is summed there.
  void* d_attn_bias = nullptr;
  Strides d_bias_strides;

  // Gradient of sinks, (N,) or one element as forward.sinks_stride says, or null = not asked for. Overwritten.
  float* d_sinks = nullptr;

  // true: the same call gives the same bits every time on the same machine, whatever the order in which thread blocks
  // run (no floating-point atomics). The CPU always does.
  bool deterministic = false;
};

// As the forward's four (attention.h). The workspace is O(B*N*(S+T)*(D+E)) at most, never O(S*T).
// backward() validates first and writes nothing unless that passes; on CUDA it only enqueues.
Status supports_backward(const AttentionGradParams& params, Device device);
size_t backward_workspace_size(const AttentionGradParams& params, const Execution& execution);
Status backward(const AttentionGradParams& params, const Execution& execution);
Status describe_backward(const AttentionGradParams& params, const Execution& execution, char* name, size_t capacity);

}  // namespace ortflash

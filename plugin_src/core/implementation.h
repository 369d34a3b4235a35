// How an implementation tells the dispatcher what it can do. Internal to the core.
//
// Each device has a list of implementations in order of preference. The dispatcher (attention.cc) computes what a call
// requires, takes the first implementation whose declaration covers it and whose hardware is there, and otherwise says
// what was required, what is supported and what is missing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.h"

namespace ortflash {

// What a call may require beyond softmax(scale * Q K^T) V with equal head counts and sizes; one bit each.
// feature_name() in choose.cc has a word for each.
enum Feature : uint32_t {
  kFeatureFloat32 = 1u << 0,         // query, key, value and output in fp32
  kFeatureFloat16 = 1u << 1,         // ... fp16
  kFeatureBFloat16 = 1u << 2,        // ... bf16
  kFeatureCausal = 1u << 3,          // is_causal, either alignment
  kFeatureWindow = 1u << 4,          // window_left or window_right
  kFeatureSoftcap = 1u << 5,         // softcap
  kFeatureBias = 1u << 6,            // attn_bias in the query's type, any broadcast
  kFeatureFloatBias = 1u << 7,       // attn_bias in fp32 where the query is fp16 or bf16
  kFeatureMask = 1u << 8,            // attn_mask with mask_fill -inf, any broadcast
  kFeatureFiniteFill = 1u << 9,      // attn_mask with a finite mask_fill
  kFeatureKeyLengths = 1u << 10,     // key_lengths
  kFeatureBlockMask = 1u << 11,      // block_mask, every block_size
  kFeatureSinks = 1u << 12,          // sinks
  kFeatureGroupedHeads = 1u << 13,   // num_heads != kv_num_heads
  kFeatureSplitHeadSize = 1u << 14,  // v_head_size != head_size
  kFeatureLse = 1u << 15,            // softmax_lse
  kFeaturePrecise = 1u << 16,        // fp32-accurate products on tensor cores; never required on the CPU
  kFeatureDropout = 1u << 17,        // dropout_p and dropout_seed (dropout.h)
};
constexpr uint32_t kAllFeatures = (1u << 18) - 1;

struct Implementation {
  const char* name;       // unique in its device's list; what describe() starts with: "cpu-avx512", "sm80"
  uint32_t features;      // what it can do, as Feature bits
  int64_t max_head_size;  // of D and E

  // Whether the current machine (CUDA: the current GPU) can run it. The sentence says what is needed and what is there.
  Status (*hardware)();

  // Limits that the bits can't say, or null. Sees valid params whose features are all supported.
  Status (*accepts)(const AttentionParams& params);

  // As in attention.h; params are valid and accepted, q_len, kv_len, batch and the head counts may be 0 only where
  // the output is empty or is all zero, and those calls never arrive here.
  size_t (*workspace_size)(const AttentionParams& params, const Execution& execution);
  Status (*forward)(const AttentionParams& params, const Execution& execution);

  // Name with the tile chosen for this call, or null where `name` says it all.
  void (*describe)(const AttentionParams& params, const Execution& execution, char* name, size_t capacity);

  // Whether a call that it takes goes to it only where the caller names it, because a later one is faster; null: never.
  bool (*only_by_name)(const AttentionParams& params) = nullptr;
};

struct ImplementationList {
  const Implementation* first;
  size_t count;
};

ImplementationList cpu_implementations();  // cpu/cpu_implementations.cc

#ifdef ORTFLASH_WITH_CUDA
ImplementationList cuda_implementations();  // attention.cu

// workspace_bound() of attention.h, over all of them (attention.cu).
size_t cuda_workspace_bound(const AttentionParams& smallest, const AttentionParams& largest);

// Writes output = 0 and softmax_lse = the sink or -inf, for a call with kv_len == 0 (attention.cu).
Status cuda_forward_without_keys(const AttentionParams& params, const Execution& execution);

// The current GPU for a message: "NVIDIA H200 (sm_90)", or why there is none.
void cuda_device_name(char* name, size_t capacity);
#endif

// What the call requires, as Feature bits.
uint32_t required_features(const AttentionParams& params, Device device);

// The entries of attention.h with a given implementation instead of the preferred one: name == null or "" means the
// preferred one. For tests and benchmarks.
Status supports(const AttentionParams& params, Device device, const char* implementation);
size_t workspace_size(const AttentionParams& params, const Execution& execution, const char* implementation);
Status forward(const AttentionParams& params, const Execution& execution, const char* implementation);
Status describe(const AttentionParams& params, const Execution& execution, const char* implementation, char* name,
                size_t capacity);

}  // namespace ortflash

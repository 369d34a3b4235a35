// How an implementation of the gradients tells the dispatcher (attention_grad.cc) what it can do; as implementation.h
// does for the forward, with the same feature bits and three more. Internal to the core.
#pragma once

#include "attention_grad.h"
#include "implementation.h"

namespace ortflash {

// Beyond Feature's bits, which say what the forward of the call required (kFeatureLse is always among them).
enum GradFeature : uint32_t {
  kFeatureBiasGradient = 1u << 24,   // d_attn_bias, any broadcast, in the bias's own type
  kFeatureSinksGradient = 1u << 25,  // d_sinks
  kFeatureDeterministic = 1u << 26,  // deterministic == true
};
constexpr uint32_t kAllGradFeatures =
    kAllFeatures | kFeatureBiasGradient | kFeatureSinksGradient | kFeatureDeterministic;

// Fields as Implementation's. Calls whose gradients are all zero (an empty output, or no keys) never arrive here.
struct GradImplementation {
  const char* name;
  uint32_t features;
  int64_t max_head_size;
  Status (*hardware)();
  Status (*accepts)(const AttentionGradParams& params);
  size_t (*workspace_size)(const AttentionGradParams& params, const Execution& execution);
  Status (*backward)(const AttentionGradParams& params, const Execution& execution);
  void (*describe)(const AttentionGradParams& params, const Execution& execution, char* name, size_t capacity);
  bool only_by_name = false;
};

struct GradImplementationList {
  const GradImplementation* first;
  size_t count;
};

GradImplementationList cpu_grad_implementations();  // cpu/cpu_grad_implementations.cc

// A gradient as a (batch, head, row, column) view of elements to write.
struct GradientView {
  void* data;
  int64_t extents[4];  // an axis that the gradient is summed along has 1
  Strides strides;
  int64_t element_bytes;  // 2 or 4
};

// The gradients that the call asks for.
struct GradientViews {
  GradientView view[5];
  int count = 0;

  explicit GradientViews(const AttentionGradParams& params);
};

#ifdef ORTFLASH_WITH_CUDA
GradImplementationList cuda_grad_implementations();  // attention_grad.cu

// Writes zero to every gradient that was asked for (attention_grad.cu).
Status cuda_zero_gradients(const GradientViews& gradients, const Execution& execution);
#endif

// What the call requires, as Feature and GradFeature bits.
uint32_t required_features(const AttentionGradParams& params, Device device);

// The entries of attention_grad.h with a given implementation; name == null or "" means the preferred one.
Status supports_backward(const AttentionGradParams& params, Device device, const char* implementation);
size_t backward_workspace_size(const AttentionGradParams& params, const Execution& execution,
                               const char* implementation);
Status backward(const AttentionGradParams& params, const Execution& execution, const char* implementation);
Status describe_backward(const AttentionGradParams& params, const Execution& execution, const char* implementation,
                         char* name, size_t capacity);

}  // namespace ortflash

// The dispatcher: validate -> what the call requires -> the first implementation that covers it -> run.
#include "attention.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "choose.h"
#include "implementation.h"
#include "status.h"
#include "validate.h"

namespace ortflash {
namespace {

ImplementationList implementations(Device device) {
  if (device == Device::kCpu) return cpu_implementations();
#ifdef ORTFLASH_WITH_CUDA
  return cuda_implementations();
#else
  return {nullptr, 0};
#endif
}

Choice<Implementation> choose(const AttentionParams& params, Device device, const char* name) {
  const ImplementationList list = implementations(device);
  return choose(list.first, list.count, params, params, required_features(params, device), device, name);
}

bool output_is_empty(const AttentionParams& p) { return p.batch == 0 || p.num_heads == 0 || p.q_len == 0; }

// kv_len == 0 on the CPU: output 0, softmax_lse the sink or -inf.
void forward_without_keys(const AttentionParams& p) {
  const int64_t bytes = element_bytes(p.dtype);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t n = 0; n < p.num_heads; ++n) {
      const float sink = p.sinks != nullptr ? p.sinks[n * p.sinks_stride] : -std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < p.q_len; ++i) {
        const int64_t offset = b * p.output_strides.batch + n * p.output_strides.head + i * p.output_strides.row;
        std::memset(static_cast<char*>(p.output) + offset * bytes, 0, static_cast<size_t>(p.v_head_size * bytes));
        if (p.softmax_lse != nullptr) p.softmax_lse[(b * p.num_heads + n) * p.q_len + i] = sink;
      }
    }
  }
}

}  // namespace

uint32_t required_features(const AttentionParams& p, Device device) {
  uint32_t required = 0;
  if (p.dtype == DType::kFloat32) required |= kFeatureFloat32;
  if (p.dtype == DType::kFloat16) required |= kFeatureFloat16;
  if (p.dtype == DType::kBFloat16) required |= kFeatureBFloat16;
  if (p.is_causal) required |= kFeatureCausal;
  if (p.window_left >= 0 || p.window_right >= 0) required |= kFeatureWindow;
  if (p.softcap > 0) required |= kFeatureSoftcap;
  if (p.attn_bias != nullptr) required |= p.bias_dtype == p.dtype ? kFeatureBias : kFeatureFloatBias;
  if (p.attn_mask != nullptr) required |= std::isinf(p.mask_fill) ? kFeatureMask : kFeatureFiniteFill;
  if (p.key_lengths != nullptr) required |= kFeatureKeyLengths;
  if (p.block_mask != nullptr) required |= kFeatureBlockMask;
  if (p.sinks != nullptr) required |= kFeatureSinks;
  if (p.dropout_p > 0) required |= kFeatureDropout;
  if (p.num_heads != p.kv_num_heads) required |= kFeatureGroupedHeads;
  if (p.head_size != p.v_head_size) required |= kFeatureSplitHeadSize;
  if (p.softmax_lse != nullptr) required |= kFeatureLse;
  if (p.precise && p.dtype == DType::kFloat32 && device == Device::kCuda) required |= kFeaturePrecise;
  return required;
}

Status supports(const AttentionParams& params, Device device, const char* implementation) {
  if (Status status = validate(params, /*with_pointers=*/false); !status.ok()) return status;
  return choose(params, device, implementation).status;
}

size_t workspace_size(const AttentionParams& params, const Execution& execution, const char* implementation) {
  if (output_is_empty(params) || params.kv_len == 0) return 0;
  const Choice<Implementation> choice = choose(params, execution.device, implementation);
  return choice.implementation == nullptr ? 0 : choice.implementation->workspace_size(params, execution);
}

Status forward(const AttentionParams& params, const Execution& execution, const char* implementation) {
  if (Status status = validate(params, /*with_pointers=*/true); !status.ok()) return status;
  const Choice<Implementation> choice = choose(params, execution.device, implementation);
  if (choice.implementation == nullptr) return choice.status;
  if (output_is_empty(params)) return {};
  if (params.kv_len == 0) {
#ifdef ORTFLASH_WITH_CUDA
    if (execution.device == Device::kCuda) return cuda_forward_without_keys(params, execution);
#endif
    forward_without_keys(params);
    return {};
  }
  if (Status status = check_workspace(choice.implementation->workspace_size(params, execution), execution);
      !status.ok()) {
    return status;
  }
  return choice.implementation->forward(params, execution);
}

Status supports(const AttentionParams& params, Device device) { return supports(params, device, nullptr); }

size_t workspace_size(const AttentionParams& params, const Execution& execution) {
  return workspace_size(params, execution, nullptr);
}

size_t workspace_bound(const AttentionParams& smallest, const AttentionParams& largest) {
#ifdef ORTFLASH_WITH_CUDA
  return cuda_workspace_bound(smallest, largest);
#else
  (void)smallest, (void)largest;
  return 0;
#endif
}

Status forward(const AttentionParams& params, const Execution& execution) {
  return forward(params, execution, nullptr);
}

Status describe(const AttentionParams& params, const Execution& execution, char* name, size_t capacity) {
  return describe(params, execution, nullptr, name, capacity);
}

Status describe(const AttentionParams& params, const Execution& execution, const char* implementation, char* name,
                size_t capacity) {
  if (Status status = validate(params, /*with_pointers=*/false); !status.ok()) return status;
  const Choice<Implementation> choice = choose(params, execution.device, implementation);
  if (choice.implementation == nullptr) return choice.status;
  if (choice.implementation->describe != nullptr) {
    choice.implementation->describe(params, execution, name, capacity);
  } else {
    std::snprintf(name, capacity, "%s", choice.implementation->name);
  }
  return {};
}

}  // namespace ortflash

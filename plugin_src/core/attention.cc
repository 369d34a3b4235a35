// The dispatcher: validate -> what the call requires -> the first implementation that covers it -> run.
#include "attention.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "implementation.h"
#include "status.h"
#include "validate.h"

namespace ortflash {
namespace {

const char* feature_name(uint32_t feature) {
  switch (feature) {
    case kFeatureFloat32:
      return "float32";
    case kFeatureFloat16:
      return "float16";
    case kFeatureBFloat16:
      return "bfloat16";
    case kFeatureCausal:
      return "causal";
    case kFeatureWindow:
      return "window";
    case kFeatureSoftcap:
      return "softcap";
    case kFeatureBias:
      return "attn_bias";
    case kFeatureFloatBias:
      return "float32 attn_bias with a half query";
    case kFeatureMask:
      return "attn_mask";
    case kFeatureFiniteFill:
      return "finite mask_fill";
    case kFeatureKeyLengths:
      return "key_lengths";
    case kFeatureBlockMask:
      return "block_mask";
    case kFeatureSinks:
      return "sinks";
    case kFeatureGroupedHeads:
      return "grouped heads";
    case kFeatureSplitHeadSize:
      return "value head size other than head size";
    case kFeatureLse:
      return "softmax_lse";
    case kFeaturePrecise:
      return "precise float32";
    default:
      return "unknown";
  }
}

// "causal, window" for the bits set, or "nothing".
struct FeatureList {
  char text[160] = {0};

  explicit FeatureList(uint32_t features) {
    size_t used = 0;
    for (uint32_t bit = 1; bit != 0 && bit <= kAllFeatures; bit <<= 1) {
      if ((features & bit) == 0) continue;
      const int written =
          std::snprintf(text + used, sizeof(text) - used, "%s%s", used == 0 ? "" : ", ", feature_name(bit));
      if (written < 0 || used + static_cast<size_t>(written) >= sizeof(text)) break;
      used += static_cast<size_t>(written);
    }
    if (used == 0) std::snprintf(text, sizeof(text), "nothing");
  }
};

ImplementationList implementations(Device device) {
  if (device == Device::kCpu) return cpu_implementations();
#ifdef ORTFLASH_WITH_CUDA
  return cuda_implementations();
#else
  return {nullptr, 0};
#endif
}

// "the CPU", or the current GPU. Made only for a message: asking for a GPU's name takes a while.
struct MachineName {
  char text[128] = "the CPU";

  explicit MachineName(Device device) {
    if (device == Device::kCpu) return;
#ifdef ORTFLASH_WITH_CUDA
    cuda_device_name(text, sizeof(text));
#else
    std::snprintf(text, sizeof(text), "CUDA");
#endif
  }
};

// kOk where `candidate` takes the call on this machine; otherwise what is required, supported and missing.
Status covers(const Implementation& candidate, const AttentionParams& params, uint32_t required, Device device) {
  if (params.head_size > candidate.max_head_size || params.v_head_size > candidate.max_head_size) {
    return make_status(StatusCode::kUnsupported,
                       "%s on %s takes head sizes up to %lld; this call has query and key head size %lld and value "
                       "head size %lld",
                       candidate.name, MachineName(device).text, static_cast<long long>(candidate.max_head_size),
                       static_cast<long long>(params.head_size), static_cast<long long>(params.v_head_size));
  }
  if (const uint32_t missing = required & ~candidate.features; missing != 0) {
    return make_status(StatusCode::kUnsupported, "%s on %s misses: %s (required: %s)", candidate.name,
                       MachineName(device).text, FeatureList(missing).text, FeatureList(required).text);
  }
  if (Status status = candidate.hardware(); !status.ok()) return status;
  if (candidate.accepts != nullptr) return candidate.accepts(params);
  return {};
}

struct Choice {
  const Implementation* implementation = nullptr;
  Status status;
};

// The first implementation that covers the call (only the one called `name`, where a name is given), or why the last
// one, which is the most general, doesn't.
Choice choose(const AttentionParams& params, Device device, const char* name) {
  const ImplementationList list = implementations(device);
  const uint32_t required = required_features(params, device);
  const bool any_name = name == nullptr || name[0] == '\0';
  Choice choice;
  for (size_t i = 0; i < list.count; ++i) {
    const Implementation& candidate = list.first[i];
    if (any_name ? candidate.only_by_name : std::strcmp(candidate.name, name) != 0) continue;
    Status status = covers(candidate, params, required, device);
    if (status.ok()) return {&candidate, status};
    choice.status = status;
  }
  if (choice.status.ok()) {
    if (!any_name) {
      choice.status = make_status(StatusCode::kUnsupported, "there is no implementation called %s", name);
    } else {
      choice.status = make_status(StatusCode::kUnsupported, "this library was built without CUDA");
    }
  }
  return choice;
}

bool output_is_empty(const AttentionParams& p) { return p.batch == 0 || p.num_heads == 0 || p.q_len == 0; }

// kv_len == 0 on the CPU: output 0, softmax_lse the sink or -inf.
void forward_without_keys(const AttentionParams& p) {
  const int64_t bytes = p.dtype == DType::kFloat32 ? 4 : 2;
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
  const Choice choice = choose(params, execution.device, implementation);
  return choice.implementation == nullptr ? 0 : choice.implementation->workspace_size(params, execution);
}

Status forward(const AttentionParams& params, const Execution& execution, const char* implementation) {
  if (Status status = validate(params, /*with_pointers=*/true); !status.ok()) return status;
  const Choice choice = choose(params, execution.device, implementation);
  if (choice.implementation == nullptr) return choice.status;
  if (output_is_empty(params)) return {};
  if (params.kv_len == 0) {
#ifdef ORTFLASH_WITH_CUDA
    if (execution.device == Device::kCuda) return cuda_forward_without_keys(params, execution);
#endif
    forward_without_keys(params);
    return {};
  }
  if (choice.implementation->workspace_size(params, execution) > 0 &&
      (execution.workspace == nullptr || reinterpret_cast<uintptr_t>(execution.workspace) % 256 != 0)) {
    return make_status(StatusCode::kInvalidArgument, "the workspace is null or not aligned to 256 bytes");
  }
  return choice.implementation->forward(params, execution);
}

Status supports(const AttentionParams& params, Device device) { return supports(params, device, nullptr); }

size_t workspace_size(const AttentionParams& params, const Execution& execution) {
  return workspace_size(params, execution, nullptr);
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
  const Choice choice = choose(params, execution.device, implementation);
  if (choice.implementation == nullptr) return choice.status;
  if (choice.implementation->describe != nullptr) {
    choice.implementation->describe(params, execution, name, capacity);
  } else {
    std::snprintf(name, capacity, "%s", choice.implementation->name);
  }
  return {};
}

}  // namespace ortflash

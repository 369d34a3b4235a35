// The gradients' dispatcher: validate -> what the call requires -> the first implementation that covers it -> run.
#include "attention_grad.h"

#include <cstring>

#include "choose.h"
#include "implementation_grad.h"
#include "status.h"
#include "validate.h"

namespace ortflash {
namespace {

GradImplementationList implementations(Device device) {
  if (device == Device::kCpu) return cpu_grad_implementations();
#ifdef ORTFLASH_WITH_CUDA
  return cuda_grad_implementations();
#else
  return {nullptr, 0};
#endif
}

Choice<GradImplementation> choose(const AttentionGradParams& params, Device device, const char* name) {
  const GradImplementationList list = implementations(device);
  return choose(list.first, list.count, params, params.forward, required_features(params, device), device, name);
}

// No output, so nothing depends on anything; or no keys, so the output is a constant.
bool all_are_zero(const AttentionParams& f) {
  return f.batch == 0 || f.num_heads == 0 || f.q_len == 0 || f.kv_len == 0;
}

void zero(const GradientView& view) {
  const int64_t* extents = view.extents;
  for (int64_t b = 0; b < extents[0]; ++b) {
    for (int64_t n = 0; n < extents[1]; ++n) {
      for (int64_t i = 0; i < extents[2]; ++i) {
        for (int64_t j = 0; j < extents[3]; ++j) {
          const Strides& s = view.strides;
          const int64_t offset = b * s.batch + n * s.head + i * s.row + j * s.column;
          std::memset(static_cast<char*>(view.data) + offset * view.element_bytes, 0,
                      static_cast<size_t>(view.element_bytes));
        }
      }
    }
  }
}

}  // namespace

GradientViews::GradientViews(const AttentionGradParams& p) {
  const AttentionParams& f = p.forward;
  const int64_t bytes = element_bytes(f.dtype);
  view[count++] = {p.d_query, {f.batch, f.num_heads, f.q_len, f.head_size}, p.d_query_strides, bytes};
  view[count++] = {p.d_key, {f.batch, f.kv_num_heads, f.kv_len, f.head_size}, p.d_key_strides, bytes};
  view[count++] = {p.d_value, {f.batch, f.kv_num_heads, f.kv_len, f.v_head_size}, p.d_value_strides, bytes};
  if (p.d_attn_bias != nullptr) {
    const Strides& s = p.d_bias_strides;
    view[count++] = {p.d_attn_bias,
                     {s.batch == 0 ? 1 : f.batch, s.head == 0 ? 1 : f.num_heads, s.row == 0 ? 1 : f.q_len,
                      s.column == 0 ? 1 : f.kv_len},
                     s,
                     element_bytes(f.bias_dtype)};
  }
  if (p.d_sinks != nullptr) {
    const Strides strides{0, f.sinks_stride, 0, 1};
    view[count++] = {p.d_sinks, {1, f.sinks_stride == 0 ? 1 : f.num_heads, 1, 1}, strides, 4};
  }
}

uint32_t required_features(const AttentionGradParams& p, Device device) {
  uint32_t required = required_features(p.forward, device) | kFeatureLse;
  if (p.d_attn_bias != nullptr) required |= kFeatureBiasGradient;
  if (p.d_sinks != nullptr) required |= kFeatureSinksGradient;
  if (p.deterministic) required |= kFeatureDeterministic;
  return required;
}

Status supports_backward(const AttentionGradParams& params, Device device, const char* implementation) {
  if (Status status = validate(params, /*with_pointers=*/false); !status.ok()) return status;
  return choose(params, device, implementation).status;
}

size_t backward_workspace_size(const AttentionGradParams& params, const Execution& execution,
                               const char* implementation) {
  if (all_are_zero(params.forward)) return 0;
  const Choice<GradImplementation> choice = choose(params, execution.device, implementation);
  return choice.implementation == nullptr ? 0 : choice.implementation->workspace_size(params, execution);
}

Status backward(const AttentionGradParams& params, const Execution& execution, const char* implementation) {
  if (Status status = validate(params, /*with_pointers=*/true); !status.ok()) return status;
  const Choice<GradImplementation> choice = choose(params, execution.device, implementation);
  if (choice.implementation == nullptr) return choice.status;
  if (all_are_zero(params.forward)) {
    const GradientViews gradients(params);
#ifdef ORTFLASH_WITH_CUDA
    if (execution.device == Device::kCuda) return cuda_zero_gradients(gradients, execution);
#endif
    for (int i = 0; i < gradients.count; ++i) zero(gradients.view[i]);
    return {};
  }
  if (Status status = check_workspace(choice.implementation->workspace_size(params, execution), execution);
      !status.ok()) {
    return status;
  }
  return choice.implementation->backward(params, execution);
}

Status describe_backward(const AttentionGradParams& params, const Execution& execution, const char* implementation,
                         char* name, size_t capacity) {
  if (Status status = validate(params, /*with_pointers=*/false); !status.ok()) return status;
  const Choice<GradImplementation> choice = choose(params, execution.device, implementation);
  if (choice.implementation == nullptr) return choice.status;
  if (choice.implementation->describe != nullptr) {
    choice.implementation->describe(params, execution, name, capacity);
  } else {
    std::snprintf(name, capacity, "%s", choice.implementation->name);
  }
  return {};
}

Status supports_backward(const AttentionGradParams& params, Device device) {
  return supports_backward(params, device, nullptr);
}

size_t backward_workspace_size(const AttentionGradParams& params, const Execution& execution) {
  return backward_workspace_size(params, execution, nullptr);
}

Status backward(const AttentionGradParams& params, const Execution& execution) {
  return backward(params, execution, nullptr);
}

Status describe_backward(const AttentionGradParams& params, const Execution& execution, char* name, size_t capacity) {
  return describe_backward(params, execution, nullptr, name, capacity);
}

}  // namespace ortflash

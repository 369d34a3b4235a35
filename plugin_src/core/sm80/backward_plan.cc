#include "backward_plan.h"

#include <algorithm>
#include <cstdint>

#include "../dropout.h"
#include "../status.h"
#include "plan.h"

namespace ortflash::sm80 {
namespace {

BackwardKernelList kernels_for_backward(DType dtype, bool precise) {
  switch (dtype) {
    case DType::kFloat16:
      return float16_backward_kernels();
    case DType::kBFloat16:
      return bfloat16_backward_kernels();
    default:
      return precise ? tf32x3_backward_kernels() : tf32_backward_kernels();
  }
}

// Whether a tensor's address and all its strides are multiples of `bytes`.
bool aligned(const void* pointer, const Strides& strides, int64_t element_bytes, int64_t bytes) {
  const uint64_t together =
      reinterpret_cast<uintptr_t>(pointer) | static_cast<uint64_t>(strides.batch * element_bytes) |
      static_cast<uint64_t>(strides.head * element_bytes) | static_cast<uint64_t>(strides.row * element_bytes);
  return together % bytes == 0;
}

// The strides of a bias with those along axes of one element cleared: 0 where the gradient is summed.
Strides summed_axes(const AttentionParams& a) {
  Strides s = a.bias_strides;
  if (a.batch == 1) s.batch = 0;
  if (a.num_heads == 1) s.head = 0;
  if (a.q_len == 1) s.row = 0;
  if (a.kv_len == 1) s.column = 0;
  return s;
}

}  // namespace

Status make_backward_plan(const AttentionGradParams& g, const Gpu& gpu, BackwardPlan* plan) {
  const AttentionParams& a = g.forward;
  if (Status status = check_sizes(a); !status.ok()) return status;

  BackwardParams& p = plan->params;
  fill_params(a, &p.forward);
  p.forward.bias_strides = summed_axes(a);
  const int64_t bytes = element_bytes(a.dtype);
  p.d_output = g.d_output;
  p.d_output_strides = g.d_output_strides;
  p.d_output_copy = 0;
  for (const int width : {4, 8, 16}) {
    if (aligned(g.d_output, g.d_output_strides, bytes, width)) p.d_output_copy = width;
  }
  p.rows = {};
  const auto view = [&](void* data, const Strides& strides) {
    return GradientRows{data, strides, aligned(data, strides, bytes, 2 * bytes)};
  };
  p.d_query = view(g.d_query, g.d_query_strides);
  p.d_key = view(g.d_key, g.d_key_strides);
  p.d_value = view(g.d_value, g.d_value_strides);
  p.d_bias = g.d_attn_bias;
  p.d_bias_strides = g.d_bias_strides;
  p.d_sinks = g.d_sinks;
  p.dropout_seed = a.dropout_p > 0.0f ? a.dropout_seed : nullptr;
  p.dropout_threshold = dropout_threshold(a.dropout_p);
  p.dropout_scale = dropout_scale(a.dropout_p);
  plan->rows = a.batch * a.num_heads * a.q_len;

  const bool simple = p.forward.query_copy == 16 && p.forward.key_copy == 16 && p.forward.value_copy == 16 &&
                      p.d_output_copy == 16 && a.attn_bias == nullptr && a.attn_mask == nullptr &&
                      a.block_mask == nullptr && a.softcap == 0.0f && a.dropout_p == 0.0f;
  plan->kernels = kernels_for_backward(a.dtype, a.precise);
  const auto choose = [&](Gradient gradient) -> const BackwardKernel* {
    for (int i = 0; i < plan->kernels.count; ++i) {
      const BackwardKernel& kernel = plan->kernels.first[i];
      if (kernel.gradient == gradient && (kernel.takes_all || simple) &&
          std::max(a.head_size, a.v_head_size) <= kernel.max_head_size && kernel.shared_bytes <= gpu.shared_bytes) {
        return &kernel;
      }
    }
    return nullptr;
  };
  plan->keys = choose(Gradient::kKeys);
  plan->queries = choose(Gradient::kQueries);
  plan->bias = g.d_attn_bias != nullptr ? choose(Gradient::kBias) : nullptr;
  if (plan->keys == nullptr || plan->queries == nullptr || (g.d_attn_bias != nullptr && plan->bias == nullptr)) {
    return make_status(
        StatusCode::kUnsupported, "no backward kernel takes head size %lld with value head size %lld on %s (sm_%d%d)",
        static_cast<long long>(a.head_size), static_cast<long long>(a.v_head_size), gpu.name, gpu.major, gpu.minor);
  }
  return {};
}

}  // namespace ortflash::sm80

// The CPU's implementations of the gradients: one kernel an instruction set, most capable first, and the order of the
// steps of a call.
#include <cmath>
#include <limits>

#include "../implementation_grad.h"
#include "grad_kernel.h"
#include "hardware.h"
#include "run_items.h"

namespace ortflash {
namespace {

using cpu::GradCall;
using cpu::GradKernel;
using cpu::GradPlan;
using cpu::run_items;

// The longest step has at most this many items, and so the most threads that ever work.
int64_t most_items(const AttentionParams& p, const GradPlan& plan) {
  const int64_t rows = p.batch * p.num_heads * plan.row_tiles, keys = p.batch * p.kv_num_heads * plan.splits;
  const int64_t most = rows > keys ? rows : keys;
  return most > plan.bias_items() ? most : plan.bias_items();
}

size_t cpu_workspace_size(const AttentionGradParams& params, const Execution& execution, const GradKernel& kernel) {
  GradCall call(params);
  const int64_t slots = cpu::slot_count(execution, most_items(params.forward, call.plan));
  return call.lay_out(nullptr) + static_cast<size_t>(slots) * kernel.scratch_bytes(params);
}

// d_sink = -sum of exp(sink - softmax_lse) * delta over the rows that have it.
void sink_gradients(const GradCall& call) {
  const AttentionParams& p = call.params.forward;
  const int64_t sinks = p.sinks_stride == 0 ? 1 : p.num_heads;
  for (int64_t s = 0; s < sinks; ++s) {
    double sum = 0;
    for (int64_t head = 0; head < p.batch * p.num_heads; ++head) {
      if (sinks > 1 && head % p.num_heads != s) continue;
      if (p.sinks[s] == -std::numeric_limits<float>::infinity()) continue;
      for (int64_t i = head * p.q_len; i < (head + 1) * p.q_len; ++i) {
        sum += std::exp(static_cast<double>(p.sinks[s]) - p.softmax_lse[i]) * call.row_factor[i] * call.delta[i];
      }
    }
    call.params.d_sinks[s] = static_cast<float>(-sum);
  }
}

Status cpu_backward(const AttentionGradParams& params, const Execution& execution, const GradKernel& kernel) {
  const AttentionParams& p = params.forward;
  GradCall call(params);
  char* const scratch = static_cast<char*>(execution.workspace) + call.lay_out(execution.workspace);
  const auto run_step = [&](int64_t items, void (*step)(const GradCall&, int64_t, void*)) {
    run_items(execution, items, scratch, kernel.scratch_bytes(params),
              [&](int64_t i, void* memory) { step(call, i, memory); });
  };
  const int64_t row_items = p.batch * p.num_heads * call.plan.row_tiles;
  run_step(row_items, kernel.prepare);
  run_step(p.batch * p.kv_num_heads * call.plan.splits, kernel.accumulate);
  run_step(row_items, kernel.finish_query);
  if (params.d_attn_bias != nullptr) run_step(call.plan.bias_items(), kernel.bias);
  if (params.d_sinks != nullptr) sink_gradients(call);
  return {};
}

template <GradKernel (*kernel)()>
size_t workspace_of(const AttentionGradParams& params, const Execution& execution) {
  return cpu_workspace_size(params, execution, kernel());
}

template <GradKernel (*kernel)()>
Status backward_of(const AttentionGradParams& params, const Execution& execution) {
  return cpu_backward(params, execution, kernel());
}

constexpr GradImplementation kImplementations[] = {
#ifdef ORTFLASH_CPU_X86
    {"cpu-avx512", kAllGradFeatures, cpu::kMaxHeadSize, cpu::avx512_hardware, nullptr,
     workspace_of<cpu::avx512_grad_kernel>, backward_of<cpu::avx512_grad_kernel>, nullptr},
    {"cpu-avx2", kAllGradFeatures, cpu::kMaxHeadSize, cpu::avx2_hardware, nullptr, workspace_of<cpu::avx2_grad_kernel>,
     backward_of<cpu::avx2_grad_kernel>, nullptr},
#endif
    {"cpu-portable", kAllGradFeatures, cpu::kMaxHeadSize, cpu::any_hardware, nullptr,
     workspace_of<cpu::portable_grad_kernel>, backward_of<cpu::portable_grad_kernel>, nullptr},
};

}  // namespace

GradImplementationList cpu_grad_implementations() {
  return {kImplementations, sizeof(kImplementations) / sizeof(kImplementations[0])};
}

}  // namespace ortflash

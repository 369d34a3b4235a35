// The CPU's implementations: one kernel a instruction set, most capable first, and the loop that spreads a call's
// items over the caller's threads.
#include <atomic>
#include <cstdio>

#include "../implementation.h"
#include "../status.h"
#include "tile_kernel.h"

namespace ortflash {
namespace {

using cpu::Item;
using cpu::TileKernel;

// How a call is cut into items. Rows of one block of the block mask are never mixed with another's, so that a
// kept or dropped block holds for all rows of an item.
struct Plan {
  int64_t rows_per_item;
  int64_t items_per_head;
  int64_t items;
};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

Plan make_plan(const AttentionParams& p, const TileKernel& kernel) {
  Plan plan;
  if (p.block_mask != nullptr) {
    plan.rows_per_item = p.block_size < kernel.max_rows ? p.block_size : kernel.max_rows;
  } else {
    // Even cuts: 130 rows are 48 + 48 + 34, not 64 + 64 + 2.
    const int64_t vectors = divide_up(p.q_len, kernel.lanes);
    const int64_t pieces = divide_up(p.q_len, kernel.max_rows);
    plan.rows_per_item = divide_up(vectors, pieces) * kernel.lanes;
  }
  plan.items_per_head = divide_up(p.q_len, plan.rows_per_item);
  plan.items = p.batch * p.num_heads * plan.items_per_head;
  return plan;
}

int64_t thread_slots(const Plan& plan, const Execution& execution) {
  const int64_t threads = execution.parallel.run == nullptr ? 1 : execution.parallel.threads;
  return threads < 1 ? 1 : (threads < plan.items ? threads : plan.items);
}

size_t cpu_workspace_size(const AttentionParams& p, const Execution& execution, const TileKernel& kernel) {
  return static_cast<size_t>(thread_slots(make_plan(p, kernel), execution)) * kernel.scratch_bytes(p);
}

// What the slots of one call share: each takes the next item until none is left.
struct Work {
  const AttentionParams& params;
  const TileKernel& kernel;
  Plan plan;
  char* workspace;
  size_t scratch_bytes;
  std::atomic<int64_t> next{0};

  void run_slot(int64_t slot) {
    void* scratch = workspace + static_cast<size_t>(slot) * scratch_bytes;
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < plan.items;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      // Heads outermost, so that threads share a head's keys and values in cache; the last rows first, which under
      // a causal mask have the most to do.
      const int64_t head = i / plan.items_per_head;
      const int64_t piece = plan.items_per_head - 1 - i % plan.items_per_head;
      Item item;
      item.batch = head / params.num_heads;
      item.head = head % params.num_heads;
      item.first_row = piece * plan.rows_per_item;
      const int64_t left = params.q_len - item.first_row;
      item.rows = left < plan.rows_per_item ? left : plan.rows_per_item;
      kernel.run(params, item, scratch);
    }
  }
};

Status cpu_forward(const AttentionParams& params, const Execution& execution, const TileKernel& kernel) {
  const Plan plan = make_plan(params, kernel);
  const int64_t slots = thread_slots(plan, execution);
  Work work{params, kernel, plan, static_cast<char*>(execution.workspace), kernel.scratch_bytes(params)};
  if (slots == 1) {
    work.run_slot(0);
  } else {
    execution.parallel.run(
        execution.parallel.pool, slots, [](void* arg, int64_t slot) { static_cast<Work*>(arg)->run_slot(slot); },
        &work);
  }
  return {};
}

template <TileKernel (*kernel)()>
size_t workspace_of(const AttentionParams& params, const Execution& execution) {
  return cpu_workspace_size(params, execution, kernel());
}

template <TileKernel (*kernel)()>
Status forward_of(const AttentionParams& params, const Execution& execution) {
  return cpu_forward(params, execution, kernel());
}

Status any_hardware() { return {}; }

#ifdef ORTFLASH_CPU_X86
Status avx2_hardware() {
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return {};
  return make_status(StatusCode::kUnsupported, "cpu-avx2 needs AVX2, FMA and F16C, which this CPU lacks");
}

Status avx512_hardware() {
  if (avx2_hardware().ok() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return {};
  }
  return make_status(StatusCode::kUnsupported, "cpu-avx512 needs AVX-512 F, BW, DQ and VL, which this CPU lacks");
}
#endif

constexpr int64_t kMaxHeadSize = 512;

constexpr Implementation kImplementations[] = {
#ifdef ORTFLASH_CPU_X86
    {"cpu-avx512", kAllFeatures, kMaxHeadSize, avx512_hardware, nullptr, workspace_of<cpu::avx512_kernel>,
     forward_of<cpu::avx512_kernel>, nullptr},
    {"cpu-avx2", kAllFeatures, kMaxHeadSize, avx2_hardware, nullptr, workspace_of<cpu::avx2_kernel>,
     forward_of<cpu::avx2_kernel>, nullptr},
#endif
    {"cpu-portable", kAllFeatures, kMaxHeadSize, any_hardware, nullptr, workspace_of<cpu::portable_kernel>,
     forward_of<cpu::portable_kernel>, nullptr},
};

}  // namespace

ImplementationList cpu_implementations() {
  return {kImplementations, sizeof(kImplementations) / sizeof(kImplementations[0])};
}

}  // namespace ortflash

// The CPU's implementations: one kernel a instruction set, most capable first, and the loop that spreads a call's
// items over the caller's threads.
#include <atomic>

#include "../implementation.h"
#include "../status.h"
#include "plan.h"
#include "tile_kernel.h"

namespace ortflash {
namespace {

using cpu::make_item;
using cpu::make_plan;
using cpu::partial_floats;
using cpu::Plan;
using cpu::TileKernel;

int64_t thread_count(const Execution& execution) {
  const int64_t threads = execution.parallel.run == nullptr ? 1 : execution.parallel.threads;
  return threads < 1 ? 1 : threads;
}

// The workspace: scratch of each thread, then the partials.
struct Layout {
  int64_t slots;         // threads that work
  size_t scratch_bytes;  // of each
  size_t total_bytes;

  Layout(const AttentionParams& p, const TileKernel& kernel, const Plan& plan, int64_t threads)
      : slots(threads < plan.items ? threads : plan.items),
        scratch_bytes(kernel.scratch_bytes(p)),
        total_bytes(static_cast<size_t>(slots) * scratch_bytes +
                    static_cast<size_t>(plan.items * partial_floats(p, plan)) * sizeof(float)) {}
};

size_t cpu_workspace_size(const AttentionParams& p, const Execution& execution, const TileKernel& kernel) {
  const int64_t threads = thread_count(execution);
  return Layout(p, kernel, make_plan(p, kernel, threads), threads).total_bytes;
}

// What the slots of one call share: each takes the next item until none is left.
struct Work {
  const AttentionParams& params;
  const TileKernel& kernel;
  const Plan& plan;
  char* workspace;
  size_t scratch_bytes;
  float* partials;
  std::atomic<int64_t> next{0};

  void run_slot(int64_t slot) {
    void* scratch = workspace + static_cast<size_t>(slot) * scratch_bytes;
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < plan.items;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      kernel.run(params, make_item(params, plan, i, partials), scratch);
    }
  }
};

Status cpu_forward(const AttentionParams& params, const Execution& execution, const TileKernel& kernel) {
  const int64_t threads = thread_count(execution);
  const Plan plan = make_plan(params, kernel, threads);
  const Layout layout(params, kernel, plan, threads);
  char* const workspace = static_cast<char*>(execution.workspace);
  float* const partials =
      reinterpret_cast<float*>(workspace + static_cast<size_t>(layout.slots) * layout.scratch_bytes);
  Work work{params, kernel, plan, workspace, layout.scratch_bytes, partials};
  if (layout.slots == 1) {
    work.run_slot(0);
  } else {
    execution.parallel.run(
        execution.parallel.pool, layout.slots, [](void* arg, int64_t slot) { static_cast<Work*>(arg)->run_slot(slot); },
        &work);
  }
  if (plan.splits > 1) {
    for (int64_t i = 0; i < plan.outputs(); ++i) {
      kernel.combine(params, make_item(params, plan, i * plan.splits, partials), plan.splits);
    }
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
constexpr uint32_t kFeatures = kAllFeatures & ~kFeatureDropout;

constexpr Implementation kImplementations[] = {
#ifdef ORTFLASH_CPU_X86
    {"cpu-avx512", kFeatures, kMaxHeadSize, avx512_hardware, nullptr, workspace_of<cpu::avx512_kernel>,
     forward_of<cpu::avx512_kernel>, nullptr},
    {"cpu-avx2", kFeatures, kMaxHeadSize, avx2_hardware, nullptr, workspace_of<cpu::avx2_kernel>,
     forward_of<cpu::avx2_kernel>, nullptr},
#endif
    {"cpu-portable", kFeatures, kMaxHeadSize, any_hardware, nullptr, workspace_of<cpu::portable_kernel>,
     forward_of<cpu::portable_kernel>, nullptr},
};

}  // namespace

ImplementationList cpu_implementations() {
  return {kImplementations, sizeof(kImplementations) / sizeof(kImplementations[0])};
}

}  // namespace ortflash

// The CPU's implementations: one kernel a instruction set, most capable first, and how a call's items run on the
// caller's threads.
#include "../implementation.h"
#include "../status.h"
#include "hardware.h"
#include "plan.h"
#include "run_items.h"
#include "tile_kernel.h"

namespace ortflash {
namespace {

using cpu::make_item;
using cpu::make_plan;
using cpu::partial_floats;
using cpu::Plan;
using cpu::run_items;
using cpu::thread_count;
using cpu::TileKernel;

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

Status cpu_forward(const AttentionParams& params, const Execution& execution, const TileKernel& kernel) {
  const int64_t threads = thread_count(execution);
  const Plan plan = make_plan(params, kernel, threads);
  const Layout layout(params, kernel, plan, threads);
  char* const workspace = static_cast<char*>(execution.workspace);
  float* const partials =
      reinterpret_cast<float*>(workspace + static_cast<size_t>(layout.slots) * layout.scratch_bytes);
  run_items(execution, plan.items, workspace, layout.scratch_bytes,
            [&](int64_t i, void* scratch) { kernel.run(params, make_item(params, plan, i, partials), scratch); });
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

constexpr Implementation kImplementations[] = {
#ifdef ORTFLASH_CPU_X86
    {"cpu-avx512", kAllFeatures, cpu::kMaxHeadSize, cpu::avx512_hardware, nullptr, workspace_of<cpu::avx512_kernel>,
     forward_of<cpu::avx512_kernel>, nullptr},
    {"cpu-avx2", kAllFeatures, cpu::kMaxHeadSize, cpu::avx2_hardware, nullptr, workspace_of<cpu::avx2_kernel>,
     forward_of<cpu::avx2_kernel>, nullptr},
#endif
    {"cpu-portable", kAllFeatures, cpu::kMaxHeadSize, cpu::any_hardware, nullptr, workspace_of<cpu::portable_kernel>,
     forward_of<cpu::portable_kernel>, nullptr},
};

}  // namespace

ImplementationList cpu_implementations() {
  return {kImplementations, sizeof(kImplementations) / sizeof(kImplementations[0])};
}

}  // namespace ortflash

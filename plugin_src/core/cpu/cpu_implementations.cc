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

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// How a call is cut into items: pieces of `rows` queries of `heads` heads.
struct Plan {
  int64_t heads;   // query heads of an item, all of one key/value head's group
  int64_t rows;    // queries of each
  int64_t chunks;  // items that cover a group's heads
  int64_t pieces;  // items that cover a head's queries
  int64_t items;
};

// Queries of an item whose Q and O in fp32 stay within 256 KB, in an L2 that also holds the tiles.
int64_t most_rows(const AttentionParams& p, const TileKernel& kernel) {
  int64_t rows = kernel.max_rows;
  while (rows > 4 * kernel.lanes && rows * (p.head_size + p.v_head_size) > 256 * 1024 / 4) rows /= 2;
  return rows;
}

Plan make_plan(const AttentionParams& p, const TileKernel& kernel, int64_t threads) {
  const int64_t group = p.num_heads / p.kv_num_heads;
  const int64_t groups = p.batch * p.kv_num_heads;
  int64_t most = most_rows(p, kernel);
  Plan plan;
  plan.heads = 1;
  if (p.block_mask != nullptr) {
    plan.rows = smaller(p.block_size, most);
  } else {
    // Heads of a group share what is loaded, where they fit together, and fill lanes that a short sequence leaves idle.
    if (p.q_len <= most / 2) plan.heads = smaller(group, most / p.q_len);
    // Four items a thread keep all threads busy to the end; below 64 queries loading costs more than waiting.
    while (plan.heads > 1 && groups * divide_up(group, plan.heads) < threads) plan.heads = divide_up(plan.heads, 2);
    while (most > 64 && most > kernel.lanes && groups * group * divide_up(p.q_len, most) < 4 * threads) most /= 2;
    // Even cuts: 130 queries are 48 + 48 + 34, not 64 + 64 + 2.
    plan.rows =
        plan.heads > 1 ? p.q_len : divide_up(divide_up(p.q_len, kernel.lanes), divide_up(p.q_len, most)) * kernel.lanes;
  }
  plan.chunks = divide_up(group, plan.heads);
  plan.pieces = divide_up(p.q_len, plan.rows);
  plan.items = groups * plan.chunks * plan.pieces;
  return plan;
}

Item make_item(const AttentionParams& p, const Plan& plan, int64_t index) {
  const int64_t group = p.num_heads / p.kv_num_heads;
  // Heads outermost, so that threads share a head's keys and values in cache; the last rows first, which under a causal
  // mask have the most to do.
  const int64_t piece = plan.pieces - 1 - index % plan.pieces;
  const int64_t chunk = index / plan.pieces % plan.chunks;
  const int64_t kv_head = index / plan.pieces / plan.chunks;
  Item item;
  item.batch = kv_head / p.kv_num_heads;
  item.first_head = kv_head % p.kv_num_heads * group + chunk * plan.heads;
  item.heads = smaller(plan.heads, group - chunk * plan.heads);
  item.first_row = piece * plan.rows;
  item.rows = smaller(plan.rows, p.q_len - item.first_row);
  return item;
}

int64_t thread_count(const Execution& execution) {
  const int64_t threads = execution.parallel.run == nullptr ? 1 : execution.parallel.threads;
  return threads < 1 ? 1 : threads;
}

size_t cpu_workspace_size(const AttentionParams& p, const Execution& execution, const TileKernel& kernel) {
  const int64_t threads = thread_count(execution);
  return static_cast<size_t>(smaller(threads, make_plan(p, kernel, threads).items)) * kernel.scratch_bytes(p);
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
      kernel.run(params, make_item(params, plan, i), scratch);
    }
  }
};

Status cpu_forward(const AttentionParams& params, const Execution& execution, const TileKernel& kernel) {
  const int64_t threads = thread_count(execution);
  const Plan plan = make_plan(params, kernel, threads);
  const int64_t slots = smaller(threads, plan.items);
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

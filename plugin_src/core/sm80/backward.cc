#include "backward.h"

#include <climits>
#include <cstdio>

#include "../gpu.h"
#include "../planned.h"
#include "../status.h"
#include "backward_plan.h"
#include "implementation.h"

namespace ortflash::sm80 {
namespace {

// The library is built for the same GPUs throughout.
Status hardware() { return implementation().hardware(); }

void name_of(const BackwardPlan& plan, char* name, size_t capacity) {
  std::snprintf(name, capacity, "sm80-backward-%dx%d-d%d%s", plan.keys->block_kv, plan.keys->block_q,
                plan.keys->max_head_size, plan.keys->takes_all ? "-all" : "");
}

using Backward = Planned<AttentionGradParams, BackwardPlan, make_backward_plan, name_of>;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Status launch(const void* function, int64_t grid, int threads, int shared_bytes, BackwardParams& params, void* stream,
              const char* what) {
  if (grid > INT_MAX) {
    return make_status(StatusCode::kUnsupported, "%s: %lld thread blocks are past 2^31 - 1, the most on CUDA", what,
                       static_cast<long long>(grid));
  }
  void* arguments[] = {&params};
  return cuda_status(cudaLaunchKernel(function, dim3(static_cast<unsigned>(grid)), dim3(threads), arguments,
                                      shared_bytes, static_cast<cudaStream_t>(stream)),
                     what);
}

// A kernel that keeps tiles in shared memory. More than 48 KB must be asked for, once a kernel and device; asking twice
// does no harm.
Status launch_tiles(const BackwardKernel& kernel, int64_t grid, BackwardParams& params, void* stream,
                    const char* what) {
  params.key_tiles = static_cast<int>(ceil_div(params.forward.kv_len, kernel.block_kv));
  params.query_tiles = static_cast<int>(ceil_div(params.forward.q_len, kernel.block_q));
  const Status status = cuda_status(
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes), what);
  return status.ok() ? launch(kernel.function, grid, kernel.threads, kernel.shared_bytes, params, stream, what)
                     : status;
}

Status backward(const AttentionGradParams& g, const Execution& execution) {
  BackwardPlan plan;
  Status status = Backward::plan(g, &plan);
  if (!status.ok()) return status;
  BackwardParams& p = plan.params;
  const KernelParams& f = p.forward;
  float* workspace = static_cast<float*>(execution.workspace);
  p.rows = {workspace, workspace + plan.rows, workspace + 2 * plan.rows};
  void* stream = execution.stream;

  status = launch(plan.kernels.row_statistics, ceil_div(plan.rows, kRowStatisticsWarps), kRowStatisticsWarps * 32, 0, p,
                  stream, "statistics of rows");
  const int64_t key_tiles = ceil_div(f.kv_len, plan.keys->block_kv);
  const int64_t kv_heads = int64_t{f.batch} * f.num_heads / f.group;
  if (status.ok()) {
    status = launch_tiles(*plan.keys, kv_heads * key_tiles * plan.keys->chunks, p, stream, "gradients of keys");
  }
  const int64_t query_tiles = ceil_div(f.q_len, plan.queries->block_q);
  if (status.ok()) {
    status = launch_tiles(*plan.queries, int64_t{f.batch} * f.num_heads * query_tiles * plan.queries->chunks, p, stream,
                          "gradients of queries");
  }
  if (status.ok() && plan.bias != nullptr) {
    const Strides& s = f.bias_strides;
    const int64_t grid = (s.batch == 0 ? 1 : f.batch) * int64_t{s.head == 0 ? 1 : f.num_heads} *
                         (s.row == 0 ? 1 : ceil_div(f.q_len, plan.bias->block_q)) *
                         (s.column == 0 ? 1 : ceil_div(f.kv_len, plan.bias->block_kv));
    status = launch_tiles(*plan.bias, grid, p, stream, "gradient of attn_bias");
  }
  if (status.ok() && p.d_sinks != nullptr) {
    status = launch(plan.kernels.sinks_gradient, f.sinks_stride == 0 ? 1 : f.num_heads, kSinksThreads, 0, p, stream,
                    "gradient of sinks");
  }
  return status;
}

}  // namespace

GradImplementation grad_implementation() {
  return {"sm80",   kAllGradFeatures,   256,  hardware, Backward::accepts, Backward::workspace_size,
          backward, Backward::describe, false};
}

}  // namespace ortflash::sm80

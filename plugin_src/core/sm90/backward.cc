#include "backward.h"

#include <climits>
#include <cstdio>

#include "../gpu.h"
#include "../status.h"
#include "backward_plan.h"
#include "implementation.h"

namespace ortflash::sm90 {
namespace {

Status hardware() { return implementation().hardware(); }

template <bool MASKED>
Status accepts(const AttentionGradParams& params) {
  const BackwardKernel* kernel = nullptr;
  return choose_backward_kernel(params, MASKED, &kernel);
}

template <bool MASKED>
size_t workspace_size(const AttentionGradParams& params, const Execution&) {
  const BackwardKernel* kernel = nullptr;
  return choose_backward_kernel(params, MASKED, &kernel).ok() ? backward_workspace_bytes(params, *kernel) : 0;
}

template <bool MASKED>
void describe(const AttentionGradParams& params, const Execution&, char* name, size_t capacity) {
  const BackwardKernel* kernel = nullptr;
  const Status status = choose_backward_kernel(params, MASKED, &kernel);
  std::snprintf(name, capacity, "%s", status.ok() ? kernel->name : status.message);
}

Status launch(const void* function, int64_t grid, int threads, int shared_bytes, void** arguments, void* stream,
              const char* what) {
  if (grid > INT_MAX) {
    return make_status(StatusCode::kUnsupported, "%s: %lld thread blocks are past 2^31 - 1, the most on CUDA", what,
                       static_cast<long long>(grid));
  }
  return cuda_status(cudaLaunchKernel(function, dim3(static_cast<unsigned>(grid)), dim3(threads), arguments,
                                      shared_bytes, static_cast<cudaStream_t>(stream)),
                     what);
}

template <bool MASKED>
Status backward(const AttentionGradParams& params, const Execution& execution) {
  const BackwardKernel* kernel = nullptr;
  Status status = choose_backward_kernel(params, MASKED, &kernel);
  BackwardPlan plan;
  if (status.ok()) status = make_backward_plan(params, *kernel, execution.workspace, &plan);
  // More than 48 KB of shared memory must be asked for, once a kernel and device; asking twice does no harm.
  if (status.ok()) {
    status = cuda_status(
        cudaFuncSetAttribute(kernel->gradient, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel->shared_bytes),
        "asking for shared memory");
  }
  void* rows_arguments[] = {&plan.params};
  void* gradient_arguments[] = {&plan.maps, &plan.params};
  if (status.ok()) {
    status = launch(kernel->prepare, plan.prepare_grid, kernel->rows_threads, 0, rows_arguments, execution.stream,
                    "preparing the gradients");
  }
  if (status.ok()) {
    status = launch(kernel->gradient, plan.gradient_grid, kernel->threads, kernel->shared_bytes, gradient_arguments,
                    execution.stream, kernel->name);
  }
  if (status.ok()) {
    status = launch(kernel->finish, plan.finish_grid, 128, 0, rows_arguments, execution.stream,
                    "finishing the gradient of query");
  }
  return status;
}

}  // namespace

GradImplementation grad_implementation() {
  return {"sm90",          kBackwardFeatures, 128,  hardware, accepts<false>, workspace_size<false>,
          backward<false>, describe<false>,   false};
}

GradImplementation masked_grad_implementation() {
  return {"sm90-masked",  kMaskedBackwardFeatures, 128,  hardware, accepts<true>, workspace_size<true>,
          backward<true>, describe<true>,          false};
}

}  // namespace ortflash::sm90

// What a call of the gradients will launch.
#pragma once

#include "../implementation_grad.h"
#include "backward_kernels.h"
#include "backward_params.h"

namespace ortflash::sm90 {

constexpr uint32_t kBackwardFeatures = kFeatureFloat16 | kFeatureBFloat16 | kFeatureCausal | kFeatureWindow |
                                       kFeatureSinks | kFeatureGroupedHeads | kFeatureLse;
constexpr uint32_t kMaskedBackwardFeatures = kBackwardFeatures | kFeatureKeyLengths | kFeatureBlockMask | kFeatureMask;

struct BackwardPlan {
  const BackwardKernel* kernel;
  BackwardMaps maps;
  BackwardParams params;
  int64_t prepare_grid, gradient_grid, finish_grid;
};

// The kernel for a call whose features are supported (kMaskedBackwardFeatures where `masked`), or what the call lacks.
Status choose_backward_kernel(const AttentionGradParams& params, bool masked, const BackwardKernel** kernel);

// Bytes of workspace.
size_t backward_workspace_bytes(const AttentionGradParams& params, const BackwardKernel& kernel);

Status make_backward_plan(const AttentionGradParams& params, const BackwardKernel& kernel, void* workspace,
                          BackwardPlan* plan);

}  // namespace ortflash::sm90

// One FlashAttentionGrad node in a session: made once, run from many threads.
#pragma once

#include "core/attention_grad.h"
#include "onnxruntime/api.h"
#include "onnxruntime/node_kernel.h"

namespace ortflash::ort {

class GradKernel : private NodeKernel {
 public:
  // Reads and checks the node; `kernel` is null where a status comes back.
  static OrtStatus* create(const OrtApi& api, const OrtKernelInfo& info, Device device, bool precise,
                           GradKernel** kernel);

  // Thread-safe: everything that changes lives in `context` or on the stack.
  OrtStatus* compute(OrtKernelContext& context) const;

 private:
  GradKernel(const OrtApi& api, Device device, bool precise);
  OrtStatus* read(const OrtKernelInfo& info);
  OrtStatus* bind_outputs(OrtKernelContext& context, const Tensor (&inputs)[kMostInputs],
                          AttentionGradParams* params) const;

  bool deterministic_ = false;
  size_t outputs_ = 0;  // that the node has
};

}  // namespace ortflash::ort

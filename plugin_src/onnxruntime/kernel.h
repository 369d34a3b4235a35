// One FlashAttention node in a session: made once, run from many threads.
#pragma once

#include "core/attention.h"
#include "onnxruntime/api.h"
#include "onnxruntime/node_kernel.h"

namespace ortflash::ort {

class Kernel : private NodeKernel {
 public:
  // Reads and checks the node; `kernel` is null where a status comes back.
  static OrtStatus* create(const OrtApi& api, const OrtKernelInfo& info, Device device, bool precise, Kernel** kernel);

  // Thread-safe: everything that changes lives in `context` or on the stack.
  OrtStatus* compute(OrtKernelContext& context) const;

 private:
  Kernel(const OrtApi& api, Device device, bool precise);
  OrtStatus* read(const OrtKernelInfo& info);
};

}  // namespace ortflash::ort

// One FlashAttention node in a session: made once, run from many threads.
#pragma once

#include "adapter/attributes.h"
#include "core/attention.h"
#include "flash_attention_schema.h"
#include "onnxruntime/api.h"

namespace ortflash::ort {

class Kernel {
 public:
  // Reads and checks the node; `kernel` is null where a status comes back.
  static OrtStatus* create(const OrtApi& api, const OrtKernelInfo& info, Device device, bool precise, Kernel** kernel);

  // Thread-safe: everything that changes lives in `context` or on the stack.
  OrtStatus* compute(OrtKernelContext& context) const;

 private:
  Kernel(const OrtApi& api, Device device, bool precise)
      : api_(api), device_(device), precise_(precise), allocator_(api) {}
  OrtStatus* read(const OrtKernelInfo& info);
  OrtStatus* read_constants(const OrtKernelInfo& info);

  const OrtApi& api_;
  const Device device_;
  const bool precise_;
  char name_[256] = {0};
  Attributes attributes_;
  OwnedAllocator allocator_;               // of the device's memory
  const OrtMemoryInfo* memory_ = nullptr;  // owned by allocator_
  int64_t threads_ = 1;
  bool neutral_[schema::kInputCount] = {false};  // inputs whose constant value says that they are not there
};

}  // namespace ortflash::ort

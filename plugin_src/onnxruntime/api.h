// ONNX Runtime's C API, as far as it is used here: which version, and statuses and handles that release themselves.
// The C interface alone crosses the border; no exception and no C++ type does.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <memory>

#include "core/attention.h"

namespace ortflash::ort {

// What this library asks ONNX Runtime for, whatever the headers' own version is: release 1.21 is the oldest that runs
// it.
inline constexpr uint32_t kApiVersion = 21;
static_assert(ORT_API_VERSION >= kApiVersion, "the headers are older than the API that the library asks for");

// An OrtStatus that is released at the end of its scope, unless it is handed on.
class OwnedStatus {
 public:
  OwnedStatus(const OrtApi& api, OrtStatus* status) : api_(api), status_(status) {}
  ~OwnedStatus() {
    if (status_ != nullptr) api_.ReleaseStatus(status_);
  }
  OwnedStatus(const OwnedStatus&) = delete;
  OwnedStatus& operator=(const OwnedStatus&) = delete;

  bool ok() const { return status_ == nullptr; }
  OrtStatus* release() {
    OrtStatus* status = status_;
    status_ = nullptr;
    return status;
  }

 private:
  const OrtApi& api_;
  OrtStatus* status_;
};

// An OrtAllocator of a node's provider, given back at the end of its scope.
class OwnedAllocator {
 public:
  explicit OwnedAllocator(const OrtApi& api) : api_(api) {}
  ~OwnedAllocator() {
    if (allocator_ != nullptr) api_.ReleaseAllocator(allocator_);
  }
  OwnedAllocator(const OwnedAllocator&) = delete;
  OwnedAllocator& operator=(const OwnedAllocator&) = delete;

  OrtAllocator* get() const { return allocator_; }
  OrtAllocator** out() { return &allocator_; }

 private:
  const OrtApi& api_;
  OrtAllocator* allocator_ = nullptr;
};

// The core's status as ONNX Runtime's, headed by the operator's and the node's name; null where it is ok.
OrtStatus* to_ort_status(const OrtApi& api, const char* op_name, const char* node_name, const Status& status);

}  // namespace ortflash::ort

// Hands an OrtStatus that isn't ok to the caller.
#define ORTFLASH_RETURN_IF_ERROR(expression)                \
  do {                                                      \
    OrtStatus* ortflash_status = (expression);              \
    if (ortflash_status != nullptr) return ortflash_status; \
  } while (false)

#include "onnxruntime/api.h"

#include <cstdio>

namespace ortflash::ort {
namespace {

OrtErrorCode error_code(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return ORT_INVALID_ARGUMENT;
    case StatusCode::kUnsupported:
      return ORT_NOT_IMPLEMENTED;
    case StatusCode::kDeviceError:
      return ORT_EP_FAIL;
    case StatusCode::kOk:
      return ORT_OK;
  }
  return ORT_FAIL;
}

}  // namespace

OrtStatus* to_ort_status(const OrtApi& api, const char* op_name, const char* node_name, const Status& status) {
  if (status.ok()) return nullptr;
  char message[1024];
  std::snprintf(message, sizeof(message), "%s node '%s': %s.", op_name, node_name, status.message);
  return api.CreateStatus(error_code(status.code), message);
}

}  // namespace ortflash::ort

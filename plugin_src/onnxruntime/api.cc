#include "onnxruntime/api.h"

#include <cstdio>

#include "flash_attention_schema.h"

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

OrtStatus* to_ort_status(const OrtApi& api, const char* node_name, const Status& status) {
  if (status.ok()) return nullptr;
  char message[1024];
  std::snprintf(message, sizeof(message), "%s node '%s': %s.", schema::kOpName, node_name, status.message);
  return api.CreateStatus(error_code(status.code), message);
}

}  // namespace ortflash::ort

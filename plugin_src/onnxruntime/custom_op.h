// FlashAttention as ONNX Runtime's custom-op interface wants it: one OrtCustomOp for each query type and provider, all
// of one name, so that the type of the output follows that of the query.
#pragma once

#include "core/attention.h"
#include "onnxruntime/api.h"

namespace ortflash::ort {

struct CustomOp : OrtCustomOp {
  CustomOp(const OrtApi& api, Device device, ONNXTensorElementDataType query_type, bool precise);

  const OrtApi& api;
  const Device device;
  const ONNXTensorElementDataType query_type;
  const bool precise;  // of the session; see AttentionParams
};

}  // namespace ortflash::ort

// An operator as ONNX Runtime's custom-op interface wants it: one OrtCustomOp for each query type and provider, all of
// one name, so that the type of the output follows that of the query.
#pragma once

#include <cstddef>

#include "core/attention.h"
#include "flash_attention_schema.h"
#include "onnxruntime/api.h"

namespace ortflash::ort {

// What the two operators differ in.
struct OpSpec {
  const char* name;
  const schema::Input* inputs;
  size_t input_count;
  const schema::Output* outputs;
  size_t output_count;
  void (*infer_shapes)(const OrtApi& api, OrtShapeInferContext& context);
  OrtStatus* (*create)(const OrtApi& api, const OrtKernelInfo& info, Device device, bool precise, void** kernel);
  OrtStatus* (*compute)(const void* kernel, OrtKernelContext& context);
  void (*destroy)(void* kernel);
};

extern const OpSpec kFlashAttention;
extern const OpSpec kFlashAttentionGrad;

struct CustomOp : OrtCustomOp {
  CustomOp(const OrtApi& api, const OpSpec& spec, Device device, ONNXTensorElementDataType query_type, bool precise);

  const OrtApi& api;
  const OpSpec& spec;
  const Device device;
  const ONNXTensorElementDataType query_type;
  const bool precise;  // of the session; see AttentionParams
};

}  // namespace ortflash::ort

#include "onnxruntime/custom_op.h"

#include "flash_attention_schema.h"
#include "onnxruntime/infer_shapes.h"
#include "onnxruntime/kernel.h"

namespace ortflash::ort {
namespace {

const CustomOp& self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

// One fixed type, or undefined ("any") where the schema allows several: the kernel checks those itself. Only attn_bias
// is such an input; with a second one ONNX Runtime could not tell the output's type.
ONNXTensorElementDataType element_type(uint32_t types, ONNXTensorElementDataType query_type) {
  switch (types) {
    case schema::kTypeQuery:
    case schema::kQueryTypes:
      return query_type;
    case schema::kTypeFloat32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case schema::kTypeBool:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
    case schema::kTypeInt32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    default:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  }
}

OrtCustomOpInputOutputCharacteristic characteristic(bool optional) {
  return optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

}  // namespace

CustomOp::CustomOp(const OrtApi& ort_api, Device op_device, ONNXTensorElementDataType op_query_type, bool op_precise)
    : OrtCustomOp{}, api(ort_api), device(op_device), query_type(op_query_type), precise(op_precise) {
  version = kApiVersion;
  GetName = [](const OrtCustomOp*) { return schema::kOpName; };
  GetExecutionProviderType = [](const OrtCustomOp* op) {
    return self(op).device == Device::kCuda ? "CUDAExecutionProvider" : "CPUExecutionProvider";
  };
  GetStartVersion = [](const OrtCustomOp*) { return schema::kOpVersion; };
  GetEndVersion = [](const OrtCustomOp*) { return schema::kOpVersion; };

  GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return schema::kInputCount; };
  GetInputType = [](const OrtCustomOp* op, size_t i) {
    return element_type(schema::kInputs[i].types, self(op).query_type);
  };
  GetInputCharacteristic = [](const OrtCustomOp*, size_t i) { return characteristic(schema::kInputs[i].optional); };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };

  GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return schema::kOutputCount; };
  GetOutputType = [](const OrtCustomOp* op, size_t i) {
    return element_type(schema::kOutputs[i].types, self(op).query_type);
  };
  GetOutputCharacteristic = [](const OrtCustomOp*, size_t i) { return characteristic(schema::kOutputs[i].optional); };

  InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) -> OrtStatusPtr {
    infer_output_shapes(self(op).api, *context);
    return nullptr;
  };
  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi* ort, const OrtKernelInfo* info,
                      void** kernel) -> OrtStatusPtr {
    Kernel* made = nullptr;
    OrtStatus* status = Kernel::create(*ort, *info, self(op).device, self(op).precise, &made);
    *kernel = made;
    return status;
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
    return static_cast<const Kernel*>(kernel)->compute(*context);
  };
  KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
}

}  // namespace ortflash::ort

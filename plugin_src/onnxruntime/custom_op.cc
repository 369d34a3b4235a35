#include "onnxruntime/custom_op.h"

#include <memory>
#include <new>

#include "flash_attention_schema.h"
#include "onnxruntime/grad_kernel.h"
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
    case schema::kTypeInt64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    default:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  }
}

OrtCustomOpInputOutputCharacteristic characteristic(bool optional) {
  return optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

template <class AnyKernel>
OrtStatus* create(const OrtApi& api, const OrtKernelInfo& info, Device device, bool precise, void** kernel) {
  AnyKernel* made = nullptr;
  OrtStatus* status = AnyKernel::create(api, info, device, precise, &made);
  *kernel = made;
  return status;
}

template <class AnyKernel>
OrtStatus* compute(const void* kernel, OrtKernelContext& context) {
  return static_cast<const AnyKernel*>(kernel)->compute(context);
}

template <class AnyKernel>
void destroy(void* kernel) {
  delete static_cast<AnyKernel*>(kernel);
}

// Which operator a kernel belongs to: ONNX Runtime hands compute() and destroy() the kernel alone.
struct Made {
  const OpSpec& spec;
  void* kernel;
};

}  // namespace

const OpSpec kFlashAttention = {schema::kOpName,  schema::kInputs,      schema::kInputCount,
                                schema::kOutputs, schema::kOutputCount, infer_output_shapes,
                                create<Kernel>,   compute<Kernel>,      destroy<Kernel>};

const OpSpec kFlashAttentionGrad = {schema::grad::kOpName,  schema::grad::kInputs,      schema::grad::kInputCount,
                                    schema::grad::kOutputs, schema::grad::kOutputCount, infer_gradient_shapes,
                                    create<GradKernel>,     compute<GradKernel>,        destroy<GradKernel>};

CustomOp::CustomOp(const OrtApi& ort_api, const OpSpec& op_spec, Device op_device,
                   ONNXTensorElementDataType op_query_type, bool op_precise)
    : OrtCustomOp{}, api(ort_api), spec(op_spec), device(op_device), query_type(op_query_type), precise(op_precise) {
  version = kApiVersion;
  GetName = [](const OrtCustomOp* op) { return self(op).spec.name; };
  GetExecutionProviderType = [](const OrtCustomOp* op) {
    return self(op).device == Device::kCuda ? "CUDAExecutionProvider" : "CPUExecutionProvider";
  };
  GetStartVersion = [](const OrtCustomOp*) { return schema::kOpVersion; };
  GetEndVersion = [](const OrtCustomOp*) { return schema::kOpVersion; };

  GetInputTypeCount = [](const OrtCustomOp* op) { return self(op).spec.input_count; };
  GetInputType = [](const OrtCustomOp* op, size_t i) {
    return element_type(self(op).spec.inputs[i].types, self(op).query_type);
  };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) {
    return characteristic(self(op).spec.inputs[i].optional);
  };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };

  GetOutputTypeCount = [](const OrtCustomOp* op) { return self(op).spec.output_count; };
  GetOutputType = [](const OrtCustomOp* op, size_t i) {
    return element_type(self(op).spec.outputs[i].types, self(op).query_type);
  };
  GetOutputCharacteristic = [](const OrtCustomOp* op, size_t i) {
    return characteristic(self(op).spec.outputs[i].optional);
  };

  InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) -> OrtStatusPtr {
    self(op).spec.infer_shapes(self(op).api, *context);
    return nullptr;
  };
  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi* ort, const OrtKernelInfo* info,
                      void** kernel) -> OrtStatusPtr {
    *kernel = nullptr;
    auto made = std::unique_ptr<Made>(new (std::nothrow) Made{self(op).spec, nullptr});
    if (made == nullptr) return ort->CreateStatus(ORT_FAIL, "ortflash: out of memory.");
    ORTFLASH_RETURN_IF_ERROR(made->spec.create(*ort, *info, self(op).device, self(op).precise, &made->kernel));
    *kernel = made.release();
    return nullptr;
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
    const Made& made = *static_cast<const Made*>(kernel);
    return made.spec.compute(made.kernel, *context);
  };
  KernelDestroy = [](void* kernel) {
    const std::unique_ptr<Made> made(static_cast<Made*>(kernel));
    made->spec.destroy(made->kernel);
  };
}

}  // namespace ortflash::ort

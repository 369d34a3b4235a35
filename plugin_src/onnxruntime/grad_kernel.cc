#include "onnxruntime/grad_kernel.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <new>

#include "adapter/grad_call.h"
#include "core/status.h"

namespace ortflash::ort {
namespace {

namespace grad = schema::grad;

constexpr Ports kPorts = {grad::kOpName, grad::kInputs, grad::kInputCount, forward_input};
static_assert(kMostInputs == size_t{grad::kInputCount}, "read_inputs() fills what make_grad_call() takes");

}  // namespace

GradKernel::GradKernel(const OrtApi& api, Device device, bool precise) : NodeKernel(api, device, precise, kPorts) {}

OrtStatus* GradKernel::create(const OrtApi& api, const OrtKernelInfo& info, Device device, bool precise,
                              GradKernel** kernel) {
  *kernel = nullptr;
  std::unique_ptr<GradKernel> made(new (std::nothrow) GradKernel(api, device, precise));
  if (made == nullptr) return api.CreateStatus(ORT_FAIL, "FlashAttentionGrad: out of memory.");
  ORTFLASH_RETURN_IF_ERROR(made->read(info));
  *kernel = made.release();
  return nullptr;
}

OrtStatus* GradKernel::read(const OrtKernelInfo& info) {
  ORTFLASH_RETURN_IF_ERROR(read_node(info));
  int64_t deterministic = 0;
  ORTFLASH_RETURN_IF_ERROR(read_int(info, grad::kDeterministic, &deterministic));
  deterministic_ = deterministic != 0;
  return api_.KernelInfo_GetOutputCount(&info, &outputs_);
}

OrtStatus* GradKernel::bind_outputs(OrtKernelContext& context, const Tensor (&inputs)[kMostInputs],
                                    AttentionGradParams* params) const {
  const auto bind = [&](grad::OutputIndex output, grad::InputIndex input, void** data) -> OrtStatus* {
    if (output >= outputs_) return nullptr;
    const Tensor& tensor = inputs[input];
    if (!tensor.present) {
      return told(make_status(StatusCode::kInvalidArgument, "output '%s' is there, but input '%s' is not",
                              grad::kOutputs[output].name, grad::kInputs[input].name));
    }
    return output_data(context, output, tensor.shape, tensor.rank, data);
  };
  ORTFLASH_RETURN_IF_ERROR(bind(grad::kOutputDQuery, grad::kInputQuery, &params->d_query));
  ORTFLASH_RETURN_IF_ERROR(bind(grad::kOutputDKey, grad::kInputKey, &params->d_key));
  ORTFLASH_RETURN_IF_ERROR(bind(grad::kOutputDValue, grad::kInputValue, &params->d_value));
  ORTFLASH_RETURN_IF_ERROR(bind(grad::kOutputDAttnBias, grad::kInputAttnBias, &params->d_attn_bias));
  if (params->d_attn_bias != nullptr && params->forward.bias_dtype != params->forward.dtype) {
    return told(make_status(StatusCode::kUnsupported,
                            "output '%s' is there, but input '%s' is float32 and not of the "
                            "type of 'query'; cast it to that type",
                            grad::kOutputs[grad::kOutputDAttnBias].name, grad::kInputs[grad::kInputAttnBias].name));
  }
  void* d_sinks = nullptr;
  ORTFLASH_RETURN_IF_ERROR(bind(grad::kOutputDSinks, grad::kInputSinks, &d_sinks));
  params->d_sinks = static_cast<float*>(d_sinks);
  return nullptr;
}

OrtStatus* GradKernel::compute(OrtKernelContext& context) const {
  InputTensor storage[kMostInputs];
  Tensor inputs[kMostInputs];
  ORTFLASH_RETURN_IF_ERROR(read_inputs(context, storage, inputs));
  AttentionGradParams params;
  ORTFLASH_RETURN_IF_ERROR(told(make_grad_call(attributes_, inputs, &params)));
  params.forward.precise = precise_;
  params.deterministic = deterministic_;
  ORTFLASH_RETURN_IF_ERROR(bind_outputs(context, inputs, &params));
  return run<AttentionGradParams>(context, params, supports_backward, backward_workspace_size, backward);
}

}  // namespace ortflash::ort

#include "onnxruntime/kernel.h"

#include <algorithm>
#include <memory>
#include <new>

#include "adapter/call.h"
#include "core/status.h"

namespace ortflash::ort {
namespace {

constexpr Ports kPorts = {schema::kOpName, schema::kInputs, schema::kInputCount,
                          [](size_t index) { return static_cast<schema::InputIndex>(index); }};

}  // namespace

Kernel::Kernel(const OrtApi& api, Device device, bool precise) : NodeKernel(api, device, precise, kPorts) {}

OrtStatus* Kernel::create(const OrtApi& api, const OrtKernelInfo& info, Device device, bool precise, Kernel** kernel) {
  *kernel = nullptr;
  std::unique_ptr<Kernel> made(new (std::nothrow) Kernel(api, device, precise));
  if (made == nullptr) return api.CreateStatus(ORT_FAIL, "FlashAttention: out of memory.");
  ORTFLASH_RETURN_IF_ERROR(made->read(info));
  *kernel = made.release();
  return nullptr;
}

OrtStatus* Kernel::read(const OrtKernelInfo& info) {
  ORTFLASH_RETURN_IF_ERROR(read_node(info));
  size_t outputs = 0;
  ORTFLASH_RETURN_IF_ERROR(api_.KernelInfo_GetOutputCount(&info, &outputs));
  if (outputs > 1 && !attributes_.return_lse) {
    return told(make_status(StatusCode::kInvalidArgument, "output '%s' is there although attribute '%s' is 0",
                            schema::kOutputs[schema::kOutputSoftmaxLse].name, schema::kReturnLse.name));
  }
  return nullptr;
}

OrtStatus* Kernel::compute(OrtKernelContext& context) const {
  InputTensor storage[kMostInputs];
  Tensor given[kMostInputs];
  ORTFLASH_RETURN_IF_ERROR(read_inputs(context, storage, given));
  Tensor inputs[schema::kInputCount];
  std::copy_n(given, schema::kInputCount, inputs);

  Call call;
  ORTFLASH_RETURN_IF_ERROR(told(make_call(attributes_, inputs, &call)));
  AttentionParams& params = call.params;
  params.precise = precise_;
  ORTFLASH_RETURN_IF_ERROR(
      output_data(context, schema::kOutputOutput, call.output_shape, call.output_rank, &params.output));
  if (attributes_.return_lse) {
    void* softmax_lse = nullptr;
    ORTFLASH_RETURN_IF_ERROR(output_data(context, schema::kOutputSoftmaxLse, call.lse_shape, 3, &softmax_lse));
    params.softmax_lse = static_cast<float*>(softmax_lse);
  }
  if (params.batch == 0 || params.q_len == 0) return nullptr;  // both outputs are empty
  return run<AttentionParams>(context, params, supports, workspace_size, forward);
}

}  // namespace ortflash::ort

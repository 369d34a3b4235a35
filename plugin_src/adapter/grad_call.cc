#include "adapter/grad_call.h"

#include <algorithm>

#include "adapter/shape_text.h"
#include "core/status.h"

namespace ortflash {
namespace {

Status check(const Tensor& tensor, schema::grad::InputIndex index, schema::Type type, const int64_t* shape,
             size_t rank) {
  const char* name = schema::grad::kInputs[index].name;
  if (!tensor.present) return make_status(StatusCode::kInvalidArgument, "input '%s' is missing", name);
  if (tensor.type != type) {
    return make_status(StatusCode::kInvalidArgument, "input '%s' has type %s but must be %s", name,
                       type_name(tensor.type), type_name(type));
  }
  if (tensor.rank != rank || !std::equal(shape, shape + rank, tensor.shape)) {
    return make_status(StatusCode::kInvalidArgument, "input '%s' has shape %s but must be %s, as the forward gives it",
                       name, ShapeText(tensor.shape, tensor.rank).text, ShapeText(shape, rank).text);
  }
  return {};
}

}  // namespace

Status make_grad_call(const Attributes& attributes, const Tensor (&inputs)[schema::grad::kInputCount],
                      AttentionGradParams* params) {
  *params = {};
  Tensor forward[schema::kInputCount];
  for (size_t i = 0; i < schema::grad::kInputCount; ++i) {
    if (i < schema::grad::kInputOutput || i > schema::grad::kInputDOutput) forward[forward_input(i)] = inputs[i];
  }
  Call call;
  Status status = make_call(attributes, forward, &call);
  const schema::Type type = inputs[schema::grad::kInputQuery].type;
  const auto take = [&](schema::grad::InputIndex index, schema::Type wanted, const int64_t* shape, size_t rank) {
    if (status.ok()) status = check(inputs[index], index, wanted, shape, rank);
  };
  take(schema::grad::kInputOutput, type, call.output_shape, call.output_rank);
  take(schema::grad::kInputSoftmaxLse, schema::kTypeFloat32, call.lse_shape, 3);
  take(schema::grad::kInputDOutput, type, call.output_shape, call.output_rank);
  if (!status.ok()) return status;

  AttentionParams& f = params->forward;
  f = call.params;
  // Read, not written: attention_grad.h.
  f.output = const_cast<void*>(inputs[schema::grad::kInputOutput].data);
  f.softmax_lse = static_cast<float*>(const_cast<void*>(inputs[schema::grad::kInputSoftmaxLse].data));
  params->d_output = inputs[schema::grad::kInputDOutput].data;
  params->d_output_strides = f.output_strides;
  params->d_query_strides = f.query_strides;
  params->d_key_strides = f.key_strides;
  params->d_value_strides = f.value_strides;
  params->d_bias_strides = f.bias_strides;
  return {};
}

}  // namespace ortflash

#include "tensorrt/node.h"

#include <algorithm>
#include <cstdio>

#include "adapter/call.h"
#include "core/status.h"

namespace ortflash::trt {
namespace {

using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::DimsExprs;
using nvinfer1::IDimensionExpr;

// TensorRT 8 hands bool tensors to no plugin. There the masks are int32, 0 or 1: `ortflash build` casts them.
constexpr bool kMasksAreInt32 = ORTFLASH_TENSORRT_MAJOR == 8;

// What stands for a tensor's data while an engine is built: not null, aligned, and never read.
const void* const kNoData = reinterpret_cast<const void*>(uintptr_t{4096});

// None of the schema's bits for a type that it has no input of.
schema::Type schema_type(DataType type) {
  switch (type) {
    case DataType::kFLOAT:
      return schema::kTypeFloat32;
    case DataType::kHALF:
      return schema::kTypeFloat16;
#if ORTFLASH_TENSORRT_MAJOR >= 10
    case DataType::kBF16:
      return schema::kTypeBFloat16;
#endif
    case DataType::kBOOL:
      return schema::kTypeBool;
    case DataType::kINT32:
      return schema::kTypeInt32;
    default:
      return schema::Type{0};
  }
}

Status check_count(int32_t input_count) {
  constexpr int32_t kLeast = 3, kMost = schema::kInputDropoutSeed;  // the last one, of a feature that is refused
  static_assert(kMost == schema::kInputCount - 1, "a new input of the schema has to be taken or refused here");
  if (input_count >= kLeast && input_count <= kMost) return {};
  return make_status(StatusCode::kInvalidArgument, "there are %d inputs, but %d to %d are possible", input_count,
                     kLeast, kMost);
}

bool is_mask(int32_t input) { return schema::kInputs[input].types == schema::kTypeBool; }

// The type of an input as the schema has it.
schema::Type input_type(int32_t input, DataType type) {
  if (kMasksAreInt32 && is_mask(input)) return type == DataType::kINT32 ? schema::kTypeBool : schema::Type{0};
  return schema_type(type);
}

bool is_constant(const DimsExprs& shape) {
  return std::all_of(shape.d, shape.d + shape.nbDims, [](const IDimensionExpr* size) { return size->isConstant(); });
}

// Sizes that only a run can tell are -1.
bool all_sizes_are_known(const TensorView* inputs, int32_t input_count) {
  for (int32_t i = 0; i < std::min<int32_t>(input_count, schema::kInputCount); ++i) {
    const Dims& dims = inputs[i].dims;
    if (std::any_of(dims.d, dims.d + std::max(dims.nbDims, 0), [](int64_t size) { return size < 0; })) return false;
  }
  return true;
}

// An int32 tensor of 0 and 1 is one of bytes with three of them left out (little-endian, as every host of a GPU).
void step_over_int32(Strides* strides) {
  *strides = {strides->batch * 4, strides->head * 4, strides->row * 4, strides->column * 4};
}

}  // namespace

Node::Node(const char* name, const NodeState& state) : state_(state) {
  std::snprintf(name_, sizeof(name_), "%s", name == nullptr ? "" : name);
}

bool Node::takes(int32_t position, int32_t input_count, DataType type, nvinfer1::TensorFormat format,
                 DataType query_type) {
  if (format != nvinfer1::TensorFormat::kLINEAR) return false;
  const bool is_output = position >= input_count;
  const int32_t index = is_output ? position - input_count : position;
  if (index >= (is_output ? int32_t{schema::kOutputCount} : int32_t{schema::kInputCount})) return false;
  const uint32_t types = is_output ? schema::kOutputs[index].types : schema::kInputs[index].types;
  const schema::Type given = is_output ? schema_type(type) : input_type(index, type);
  const uint32_t allowed = types & schema::kTypeQuery ? types | schema_type(query_type) : types;
  return (allowed & given) != 0;
}

Status Node::output_type(int32_t index, const DataType* types, int32_t input_count, DataType* type) const {
  if (Status status = check_count(input_count); !status.ok()) return status;
  for (int32_t i = 0; i < input_count; ++i) {
    if (takes(i, input_count, types[i], nvinfer1::TensorFormat::kLINEAR, types[schema::kInputQuery])) continue;
    return make_status(StatusCode::kInvalidArgument, "input '%s' has a type that FlashAttention does not take there%s",
                       schema::kInputs[i].name,
                       is_mask(i) && kMasksAreInt32 ? " (TensorRT 8 needs the mask cast to int32)" : "");
  }
  *type = index == schema::kOutputOutput ? types[schema::kInputQuery] : DataType::kFLOAT;
  return {};
}

Status Node::output_shape(int32_t index, const DimsExprs* inputs, int32_t input_count, nvinfer1::IExprBuilder& builder,
                          DimsExprs* shape) const {
  const Status status = check_constant_shapes(inputs, input_count);
  if (!status.ok()) return status;
  const DimsExprs& query = inputs[schema::kInputQuery];
  const DimsExprs& value = inputs[schema::kInputValue];
  const Attributes& attributes = state_.attributes;
  const bool split = query.nbDims == 4;
  if (index == schema::kOutputSoftmaxLse) {
    shape->nbDims = 3;
    shape->d[0] = query.d[0];
    shape->d[1] = split ? query.d[1] : builder.constant(attributes.num_heads);
    shape->d[2] = query.d[split ? 2 : 1];
  } else if (split) {
    *shape = query;
    shape->d[3] = value.d[3];
  } else {
    *shape = query;
    shape->d[2] = value.d[2];
    if (attributes.num_heads != attributes.kv_num_heads) {
      const IDimensionExpr* size = builder.operation(nvinfer1::DimensionOperation::kFLOOR_DIV, *value.d[2],
                                                     *builder.constant(attributes.kv_num_heads));
      shape->d[2] =
          builder.operation(nvinfer1::DimensionOperation::kPROD, *size, *builder.constant(attributes.num_heads));
    }
  }
  return {};
}

Status Node::check_constant_shapes(const DimsExprs* inputs, int32_t input_count) const {
  if (Status status = check_count(input_count); !status.ok()) return status;
  TensorView views[schema::kInputCount];
  bool constant = true;
  for (int32_t i = 0; i < input_count; ++i) {
    const uint32_t types = schema::kInputs[i].types;
    views[i].type = is_mask(i) && !kMasksAreInt32                                ? DataType::kBOOL
                    : (types & (schema::kTypeQuery | schema::kTypeFloat32)) != 0 ? DataType::kFLOAT
                                                                                 : DataType::kINT32;
    views[i].dims.nbDims = inputs[i].nbDims;
    constant = constant && is_constant(inputs[i]);
    for (int32_t axis = 0; constant && axis < inputs[i].nbDims; ++axis) {
      views[i].dims.d[axis] = inputs[i].d[axis]->getConstantValue();
    }
  }
  if (constant) {
    AttentionParams params;
    return make_params(views, input_count, &params);
  }
  const int32_t rank = inputs[schema::kInputQuery].nbDims;
  for (const schema::InputIndex i : {schema::kInputQuery, schema::kInputKey, schema::kInputValue}) {
    if (inputs[i].nbDims == rank && (rank == 3 || rank == 4)) continue;
    return make_status(StatusCode::kInvalidArgument, "input '%s' has %d axes, where 'query' has %d and both must be %s",
                       schema::kInputs[i].name, inputs[i].nbDims, rank, schema::kInputs[i].shapes);
  }
  if (rank == 3 && (state_.attributes.num_heads == 0 || state_.attributes.kv_num_heads == 0)) {
    return make_status(StatusCode::kInvalidArgument, "attributes '%s' and '%s' are needed, since input 'query' is 3-D",
                       schema::kNumHeads.name, schema::kKvNumHeads.name);
  }
  return {};
}

Status Node::make_params(const TensorView* inputs, int32_t input_count, AttentionParams* params) const {
  if (Status status = check_count(input_count); !status.ok()) return status;
  int64_t shapes[schema::kInputCount][Dims::MAX_DIMS];
  Tensor tensors[schema::kInputCount];
  for (int32_t i = 0; i < input_count; ++i) {
    if ((state_.neutral_inputs >> i & 1) != 0) continue;
    const Dims& dims = inputs[i].dims;
    std::copy(dims.d, dims.d + std::max(dims.nbDims, 0), shapes[i]);
    tensors[i].present = true;
    tensors[i].data = inputs[i].data == nullptr ? kNoData : inputs[i].data;
    tensors[i].type = input_type(i, inputs[i].type);
    tensors[i].shape = shapes[i];
    tensors[i].rank = static_cast<size_t>(std::max(dims.nbDims, 0));
  }
  Call call;
  const Status status = make_call(state_.attributes, tensors, &call);
  *params = call.params;
  if (kMasksAreInt32) {
    step_over_int32(&params->mask_strides);
    step_over_int32(&params->block_mask_strides);
  }
  return status;
}

Status Node::check(const TensorView* inputs, int32_t input_count) const {
  if (!all_sizes_are_known(inputs, input_count)) return {};
  AttentionParams params;
  Status status = make_params(inputs, input_count, &params);
  if (!status.ok()) return status;
  if (state_.attributes.return_lse) params.softmax_lse = static_cast<float*>(const_cast<void*>(kNoData));
  status = supports(params, Device::kCuda);
  return status.code == StatusCode::kDeviceError ? Status{} : status;
}

Status Node::reserve(const TensorView* smallest, const TensorView* largest, size_t* bytes) {
  // The optional inputs are left out: TensorRT's least and largest sizes are bounds of each axis by itself, which need
  // not fit together, and only query, key and value matter here.
  constexpr int32_t kOperands = 3;
  AttentionParams low, high;
  Status status = make_params(smallest, kOperands, &low);
  if (status.ok()) status = make_params(largest, kOperands, &high);
  if (!status.ok()) return status;
  *bytes = workspace_bound(low, high);
  state_.workspace_bytes = std::max(state_.workspace_bytes, static_cast<int64_t>(*bytes));
  return {};
}

Status Node::enqueue(const TensorView* inputs, int32_t input_count, void* const* outputs, void* workspace,
                     cudaStream_t stream) const {
  AttentionParams params;
  const Status status = make_params(inputs, input_count, &params);
  if (!status.ok()) return status;
  params.output = outputs[schema::kOutputOutput];
  if (state_.attributes.return_lse) params.softmax_lse = static_cast<float*>(outputs[schema::kOutputSoftmaxLse]);
  Execution execution;
  execution.device = Device::kCuda;
  execution.workspace = workspace;
  execution.stream = stream;
  const size_t wanted = workspace_size(params, execution);
  if (state_.workspace_bytes >= 0 && wanted > reserved_bytes()) {
    return make_status(StatusCode::kUnsupported,
                       "%zu bytes of workspace are needed on this GPU, and the engine has %zu", wanted,
                       reserved_bytes());
  }
  return forward(params, execution);
}

}  // namespace ortflash::trt

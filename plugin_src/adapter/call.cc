#include "adapter/call.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "adapter/shape_text.h"
#include "core/status.h"

namespace ortflash {
namespace {

using schema::InputIndex;

DType core_type(schema::Type type) {
  if (type == schema::kTypeFloat16) return DType::kFloat16;
  return type == schema::kTypeBFloat16 ? DType::kBFloat16 : DType::kFloat32;
}

ShapeText shape_of(const Tensor& tensor) { return {tensor.shape, tensor.rank}; }

size_t element_count(const Tensor& tensor) {
  size_t count = 1;
  for (size_t i = 0; i < tensor.rank; ++i) count *= static_cast<size_t>(tensor.shape[i]);
  return count;
}

// The one shape of message for two inputs that do not go together.
Status mismatch(const Tensor (&inputs)[schema::kInputCount], InputIndex left, InputIndex right, const char* what) {
  return make_status(StatusCode::kInvalidArgument,
                     "input '%s' has shape %s, which does not go with '%s' of shape %s: %s", schema::kInputs[left].name,
                     shape_of(inputs[left]).text, schema::kInputs[right].name, shape_of(inputs[right]).text, what);
}

Status check_types(const Tensor (&inputs)[schema::kInputCount]) {
  const schema::Type query_type = inputs[schema::kInputQuery].type;
  for (size_t i = 0; i < schema::kInputCount; ++i) {
    const schema::Input& spec = schema::kInputs[i];
    if (!inputs[i].present) {
      if (spec.optional) continue;
      return make_status(StatusCode::kInvalidArgument, "input '%s' is missing", spec.name);
    }
    const uint32_t allowed = spec.types | (spec.types & schema::kTypeQuery ? query_type : 0u);
    if ((allowed & inputs[i].type) == 0) {
      return make_status(StatusCode::kInvalidArgument, "input '%s' has type %s, where 'query' is %s", spec.name,
                         type_name(inputs[i].type), type_name(query_type));
    }
  }
  return {};
}

// How many heads lie in one operand: axis 1 of a 4-D shape, else the attribute.
Status head_count(const Tensor& tensor, InputIndex index, const schema::IntAttribute& attribute, int64_t given,
                  int64_t* heads) {
  const char* name = schema::kInputs[index].name;
  if (tensor.rank == 4) {
    *heads = tensor.shape[1];
    if (given == 0 || given == *heads) return {};
    return make_status(StatusCode::kInvalidArgument,
                       "attribute '%s' is %" PRId64 " but input '%s' of shape %s has %" PRId64 " heads", attribute.name,
                       given, name, shape_of(tensor).text, *heads);
  }
  *heads = given;
  if (given == 0) {
    return make_status(StatusCode::kInvalidArgument, "attribute '%s' is needed, since input '%s' of shape %s is 3-D",
                       attribute.name, name, shape_of(tensor).text);
  }
  if (tensor.shape[2] % given != 0) {
    return make_status(StatusCode::kInvalidArgument,
                       "the last axis of input '%s' of shape %s does not divide into %" PRId64 " heads ('%s')", name,
                       shape_of(tensor).text, given, attribute.name);
  }
  return {};
}

// A (B,heads,length,size) view of a contiguous 4-D tensor, or of a 3-D one whose last axis is heads * size.
Strides operand_strides(size_t rank, int64_t heads, int64_t length, int64_t size) {
  if (rank == 4) return {heads * length * size, length * size, size, 1};
  return {length * heads * size, size, heads * size, 1};
}

// Query, key and value against each other and the head counts; sizes and strides into `call`.
Status bind_operands(const Attributes& attributes, const Tensor (&inputs)[schema::kInputCount], Call* call) {
  const Tensor& query = inputs[schema::kInputQuery];
  const Tensor& key = inputs[schema::kInputKey];
  const Tensor& value = inputs[schema::kInputValue];
  for (const InputIndex index : {schema::kInputQuery, schema::kInputKey, schema::kInputValue}) {
    const Tensor& tensor = inputs[index];
    if (tensor.rank != 3 && tensor.rank != 4) {
      return make_status(StatusCode::kInvalidArgument, "input '%s' has shape %s but must be %s",
                         schema::kInputs[index].name, shape_of(tensor).text, schema::kInputs[index].shapes);
    }
    if (tensor.rank != query.rank) {
      return mismatch(inputs, index, schema::kInputQuery, "both must be 4-D, or both 3-D");
    }
    if (tensor.shape[0] != query.shape[0]) {
      return mismatch(inputs, index, schema::kInputQuery, "the batch sizes (axis 0) differ");
    }
  }

  AttentionParams& params = call->params;
  Status status = head_count(query, schema::kInputQuery, schema::kNumHeads, attributes.num_heads, &params.num_heads);
  if (!status.ok()) return status;
  status = head_count(key, schema::kInputKey, schema::kKvNumHeads, attributes.kv_num_heads, &params.kv_num_heads);
  if (!status.ok()) return status;
  int64_t value_heads = 0;
  status = head_count(value, schema::kInputValue, schema::kKvNumHeads, attributes.kv_num_heads, &value_heads);
  if (!status.ok()) return status;

  const bool split = query.rank == 4;
  const size_t length_axis = split ? 2 : 1;
  params.batch = query.shape[0];
  params.q_len = query.shape[length_axis];
  params.kv_len = key.shape[length_axis];
  params.head_size = split ? query.shape[3] : query.shape[2] / params.num_heads;
  params.v_head_size = split ? value.shape[3] : value.shape[2] / value_heads;
  const int64_t key_size = split ? key.shape[3] : key.shape[2] / params.kv_num_heads;

  if (value_heads != params.kv_num_heads) {
    return mismatch(inputs, schema::kInputValue, schema::kInputKey, "the numbers of heads (axis 1) differ");
  }
  if (value.shape[length_axis] != params.kv_len) {
    return mismatch(inputs, schema::kInputValue, schema::kInputKey, "the numbers of keys differ");
  }
  if (key_size != params.head_size) {
    return mismatch(inputs, schema::kInputKey, schema::kInputQuery, "the head sizes differ");
  }
  if (params.head_size < 1 || params.head_size > schema::kMaxHeadSize || params.v_head_size > schema::kMaxHeadSize) {
    return make_status(StatusCode::kUnsupported,
                       "head sizes %" PRId64 " ('query') and %" PRId64 " ('value') must be from 1 to %" PRId64,
                       params.head_size, params.v_head_size, schema::kMaxHeadSize);
  }
  if (params.kv_num_heads < 1 || params.num_heads % params.kv_num_heads != 0) {
    return mismatch(inputs, schema::kInputKey, schema::kInputQuery,
                    "the number of query heads must be a multiple of the number of key heads");
  }

  params.query_strides = operand_strides(query.rank, params.num_heads, params.q_len, params.head_size);
  params.key_strides = operand_strides(query.rank, params.kv_num_heads, params.kv_len, params.head_size);
  params.value_strides = operand_strides(query.rank, params.kv_num_heads, params.kv_len, params.v_head_size);
  params.output_strides = operand_strides(query.rank, params.num_heads, params.q_len, params.v_head_size);

  call->output_rank = query.rank;
  if (split) {
    const int64_t shape[] = {params.batch, params.num_heads, params.q_len, params.v_head_size};
    std::memcpy(call->output_shape, shape, sizeof(shape));
  } else {
    const int64_t shape[] = {params.batch, params.q_len, params.num_heads * params.v_head_size};
    std::memcpy(call->output_shape, shape, sizeof(shape));
  }
  const int64_t lse_shape[] = {params.batch, params.num_heads, params.q_len};
  std::memcpy(call->lse_shape, lse_shape, sizeof(lse_shape));
  return {};
}

// Strides with which a contiguous tensor is read as `target`, aligned at the last axis; 0 where it is broadcast.
Status broadcast(const Tensor& tensor, InputIndex index, const int64_t (&target)[4], Strides* strides) {
  int64_t axes[4] = {0, 0, 0, 0};
  int64_t stride = 1;
  bool fits = tensor.rank <= 4;
  for (size_t i = 0; fits && i < tensor.rank; ++i) {
    const int64_t size = tensor.shape[tensor.rank - 1 - i];
    const size_t axis = 3 - i;
    fits = size == 1 || size == target[axis];
    axes[axis] = size == 1 ? 0 : stride;
    stride *= size;
  }
  if (!fits) {
    return make_status(StatusCode::kInvalidArgument, "input '%s' has shape %s but must be %s, here %s",
                       schema::kInputs[index].name, shape_of(tensor).text, schema::kInputs[index].shapes,
                       ShapeText(target, 4).text);
  }
  *strides = {axes[0], axes[1], axes[2], axes[3]};
  return {};
}

// A vector with one element for each of `count`, or a single one for all.
Status vector(const Tensor& tensor, InputIndex index, int64_t count, int64_t* stride) {
  const bool single = element_count(tensor) == 1;
  if (tensor.rank != 1 || (!single && tensor.shape[0] != count)) {
    return make_status(StatusCode::kInvalidArgument, "input '%s' has shape %s but must be %s, here (%" PRId64 ",)",
                       schema::kInputs[index].name, shape_of(tensor).text, schema::kInputs[index].shapes, count);
  }
  *stride = single ? 0 : 1;
  return {};
}

Status bind_optional_inputs(const Tensor (&inputs)[schema::kInputCount], AttentionParams* params) {
  const Tensor& bias = inputs[schema::kInputAttnBias];
  const Tensor& mask = inputs[schema::kInputAttnMask];
  const Tensor& lengths = inputs[schema::kInputKeyLengths];
  const Tensor& blocks = inputs[schema::kInputBlockMask];
  const Tensor& sinks = inputs[schema::kInputSinks];
  const Tensor& seed = inputs[schema::kInputDropoutSeed];
  const int64_t scores[4] = {params->batch, params->num_heads, params->q_len, params->kv_len};
  const int64_t grid[4] = {params->batch, params->num_heads,
                           (params->q_len + params->block_size - 1) / params->block_size,
                           (params->kv_len + params->block_size - 1) / params->block_size};
  Status status;
  if (bias.present) {
    params->attn_bias = bias.data;
    params->bias_dtype = core_type(bias.type);
    status = broadcast(bias, schema::kInputAttnBias, scores, &params->bias_strides);
  }
  if (status.ok() && mask.present) {
    params->attn_mask = static_cast<const uint8_t*>(mask.data);
    status = broadcast(mask, schema::kInputAttnMask, scores, &params->mask_strides);
  }
  if (status.ok() && lengths.present) {
    params->key_lengths = static_cast<const int32_t*>(lengths.data);
    status = vector(lengths, schema::kInputKeyLengths, params->batch, &params->key_lengths_stride);
  }
  if (status.ok() && blocks.present) {
    params->block_mask = static_cast<const uint8_t*>(blocks.data);
    status = broadcast(blocks, schema::kInputBlockMask, grid, &params->block_mask_strides);
  }
  if (status.ok() && sinks.present) {
    params->sinks = static_cast<const float*>(sinks.data);
    status = vector(sinks, schema::kInputSinks, params->num_heads, &params->sinks_stride);
  }
  if (status.ok() && seed.present) {
    params->dropout_seed = static_cast<const int64_t*>(seed.data);
    if (seed.rank != 1 || seed.shape[0] != 2) {
      status = make_status(StatusCode::kInvalidArgument, "input '%s' has shape %s but must be %s",
                           schema::kInputs[schema::kInputDropoutSeed].name, shape_of(seed).text,
                           schema::kInputs[schema::kInputDropoutSeed].shapes);
    }
  }
  return status;
}

}  // namespace

Status make_call(const Attributes& attributes, const Tensor (&inputs)[schema::kInputCount], Call* call) {
  *call = {};
  Status status = check_types(inputs);
  if (status.ok()) status = bind_operands(attributes, inputs, call);
  if (!status.ok()) return status;

  AttentionParams& params = call->params;
  params.dtype = core_type(inputs[schema::kInputQuery].type);
  params.query = inputs[schema::kInputQuery].data;
  params.key = inputs[schema::kInputKey].data;
  params.value = inputs[schema::kInputValue].data;
  params.scale = attributes.scale;
  params.softcap = attributes.softcap;
  params.mask_fill = attributes.mask_fill;
  params.is_causal = attributes.is_causal;
  params.causal_alignment = attributes.causal_alignment;
  params.window_left = attributes.window_left;
  params.window_right = attributes.window_right;
  params.block_size = attributes.block_size;
  params.dropout_p = attributes.dropout_p;
  return bind_optional_inputs(inputs, &params);
}

bool is_neutral(schema::InputIndex input, schema::Type type, const void* element) {
  switch (input) {
    case schema::kInputAttnBias: {
      if (type == schema::kTypeFloat32) return *static_cast<const float*>(element) == 0.0f;
      return (*static_cast<const uint16_t*>(element) & 0x7fffu) == 0;  // +0 or -0 in fp16 and in bf16
    }
    case schema::kInputAttnMask:
    case schema::kInputBlockMask:
      return *static_cast<const uint8_t*>(element) != 0;
    case schema::kInputKeyLengths:
      return *static_cast<const int32_t*>(element) == std::numeric_limits<int32_t>::max();
    case schema::kInputSinks:
      return *static_cast<const float*>(element) == -schema::kInf;
    case schema::kInputDropoutSeed:
      return *static_cast<const int64_t*>(element) == 0;
    default:
      return false;
  }
}

}  // namespace ortflash

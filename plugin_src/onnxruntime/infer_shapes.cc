#include "onnxruntime/infer_shapes.h"

#include <atomic>
#include <cstdio>
#include <initializer_list>

#include "flash_attention_schema.h"

namespace ortflash::ort {
namespace {

constexpr int64_t kUnknown = -1;

// One axis: a number, a symbol of the model's, or neither.
struct Dim {
  int64_t size = kUnknown;
  const char* symbol = "";
};

struct Shape {
  size_t rank = 0;  // 0: nothing is known
  Dim axes[4];
};

struct TypeAndShape {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  Shape shape;  // its symbols live as long as the context
};

bool read_input(const OrtApi& api, OrtShapeInferContext& context, size_t index, TypeAndShape* input) {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // the context's own
  const auto ok = [&](OrtStatus* status) { return OwnedStatus(api, status).ok(); };
  size_t rank = 0;
  if (!ok(api.ShapeInferContext_GetInputTypeShape(&context, index, &info)) ||
      !ok(api.GetTensorElementType(info, &input->type)) || !ok(api.GetDimensionsCount(info, &rank)) || rank > 4) {
    return false;
  }
  int64_t sizes[4];
  const char* symbols[4] = {"", "", "", ""};
  if (rank > 0 && (!ok(api.GetDimensions(info, sizes, rank)) || !ok(api.GetSymbolicDimensions(info, symbols, rank)))) {
    return false;
  }
  input->shape.rank = rank;
  for (size_t i = 0; i < rank; ++i) input->shape.axes[i] = {sizes[i] < 0 ? kUnknown : sizes[i], symbols[i]};
  return true;
}

int64_t read_int(const OrtApi& api, OrtShapeInferContext& context, const schema::IntAttribute& attribute) {
  const OrtOpAttr* handle = nullptr;
  int64_t value = attribute.default_value;
  size_t size = 0;
  if (OwnedStatus(api, api.ShapeInferContext_GetAttribute(&context, attribute.name, &handle)).ok() &&
      !OwnedStatus(api, api.ReadOpAttr(handle, ORT_OP_ATTR_INT, &value, sizeof(value), &size)).ok()) {
    return attribute.default_value;
  }
  return value;
}

// A symbol that no other axis has. The C interface has no word for "unknown": it makes an axis of -1 elements of a
// nameless one, and ONNX Runtime then warns about it in every run.
struct FreshSymbol {
  char text[32];
  FreshSymbol() {
    static std::atomic<unsigned long> count{0};
    std::snprintf(text, sizeof(text), "ortflash_axis_%lu", count.fetch_add(1, std::memory_order_relaxed));
  }
};

void set_output(const OrtApi& api, OrtShapeInferContext& context, size_t index, ONNXTensorElementDataType type,
                const Shape& shape) {
  int64_t sizes[4];
  const char* symbols[4];
  FreshSymbol fresh[4];
  for (size_t i = 0; i < shape.rank; ++i) {
    sizes[i] = shape.axes[i].size;
    const bool unknown = sizes[i] < 0 && shape.axes[i].symbol[0] == '\0';
    symbols[i] = unknown ? fresh[i].text : shape.axes[i].symbol;
  }
  OrtTensorTypeAndShapeInfo* info = nullptr;
  if (!OwnedStatus(api, api.CreateTensorTypeAndShapeInfo(&info)).ok()) return;
  const auto ok = [&](OrtStatus* status) { return OwnedStatus(api, status).ok(); };
  if (ok(api.SetTensorElementType(info, type)) && ok(api.SetDimensions(info, sizes, shape.rank)) &&
      ok(api.SetSymbolicDimensions(info, symbols, shape.rank))) {
    ok(api.ShapeInferContext_SetOutputTypeShape(&context, index, info));
  }
  api.ReleaseTensorTypeAndShapeInfo(info);
}

// N*E of a 3-D value (B,T,M*E): the axis itself where N == M, else its size times N / M where that is known.
Dim merged_heads(const Dim& value_axis, int64_t num_heads, int64_t kv_num_heads) {
  if (num_heads == kv_num_heads) return value_axis;
  if (value_axis.size < 0 || kv_num_heads <= 0 || value_axis.size % kv_num_heads != 0) return {};
  return {value_axis.size / kv_num_heads * num_heads, ""};
}

}  // namespace

void infer_output_shapes(const OrtApi& api, OrtShapeInferContext& context) {
  TypeAndShape query, value;
  if (!read_input(api, context, schema::kInputQuery, &query) ||
      !read_input(api, context, schema::kInputValue, &value) || query.shape.rank != value.shape.rank ||
      query.shape.rank < 3) {
    return;
  }
  const int64_t num_heads = read_int(api, context, schema::kNumHeads);
  const int64_t kv_num_heads = read_int(api, context, schema::kKvNumHeads);
  const Dim(&q)[4] = query.shape.axes;
  const Dim(&v)[4] = value.shape.axes;
  if (query.shape.rank == 4) {
    set_output(api, context, schema::kOutputOutput, query.type, {4, {q[0], q[1], q[2], v[3]}});
  } else {
    set_output(api, context, schema::kOutputOutput, query.type,
               {3, {q[0], q[1], merged_heads(v[2], num_heads, kv_num_heads), {}}});
  }
  if (read_int(api, context, schema::kReturnLse) == 0) return;
  const Dim heads = num_heads > 0 ? Dim{num_heads, ""} : (query.shape.rank == 4 ? q[1] : Dim{});
  const Dim length = query.shape.rank == 4 ? q[2] : q[1];
  set_output(api, context, schema::kOutputSoftmaxLse, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
             {3, {q[0], heads, length, {}}});
}

void infer_gradient_shapes(const OrtApi& api, OrtShapeInferContext& context) {
  struct Pair {
    schema::grad::OutputIndex output;
    schema::grad::InputIndex input;
  };
  for (const Pair& pair : {Pair{schema::grad::kOutputDQuery, schema::grad::kInputQuery},
                           Pair{schema::grad::kOutputDKey, schema::grad::kInputKey},
                           Pair{schema::grad::kOutputDValue, schema::grad::kInputValue},
                           Pair{schema::grad::kOutputDAttnBias, schema::grad::kInputAttnBias},
                           Pair{schema::grad::kOutputDSinks, schema::grad::kInputSinks}}) {
    TypeAndShape like;
    if (read_input(api, context, pair.input, &like) && like.shape.rank > 0) {
      set_output(api, context, pair.output, like.type, like.shape);
    }
  }
}

}  // namespace ortflash::ort

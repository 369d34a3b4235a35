#include "tensorrt/plugin_v3.h"

#include <new>

#include "tensorrt/log.h"

namespace ortflash::trt {
namespace {

using nvinfer1::DataType;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginCapabilityType;
using nvinfer1::PluginTensorDesc;

constexpr int32_t kMaxInputs = schema::kInputCount;

enum class Sizes { kLeast, kTypical, kMost };

// What the profile says of the inputs; `count` is at most kMaxInputs.
void view_profile(const DynamicPluginTensorDesc* in, int32_t count, Sizes sizes, TensorView* views) {
  for (int32_t i = 0; i < count; ++i) {
    views[i].type = in[i].desc.type;
    views[i].dims = sizes == Sizes::kLeast ? in[i].min : sizes == Sizes::kMost ? in[i].max : in[i].opt;
  }
}

// `inputs` is null while there is no data.
void view_tensors(const PluginTensorDesc* in, int32_t count, const void* const* inputs, TensorView* views) {
  for (int32_t i = 0; i < count; ++i) {
    views[i] = {in[i].type, in[i].dims, inputs == nullptr ? nullptr : inputs[i]};
  }
}

}  // namespace

PluginV3::PluginV3(const Node& node, int32_t input_count) : node_(node), input_count_(input_count) {
  describe_state(node_.state(), description_, sizeof(description_));
}

nvinfer1::IPluginCapability* PluginV3::getCapabilityInterface(PluginCapabilityType type) noexcept {
  switch (type) {
    case PluginCapabilityType::kCORE:
      return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case PluginCapabilityType::kBUILD:
      return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
    case PluginCapabilityType::kRUNTIME:
      return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

nvinfer1::IPluginV3* PluginV3::clone() noexcept { return new (std::nothrow) PluginV3(node_, input_count_); }

const char* PluginV3::getPluginName() const noexcept { return schema::kOpName; }
const char* PluginV3::getPluginVersion() const noexcept { return schema::kPluginVersion.default_value; }
const char* PluginV3::getPluginNamespace() const noexcept { return schema::kPluginNamespace.default_value; }

int32_t PluginV3::configurePlugin(const DynamicPluginTensorDesc* in, int32_t input_count,
                                  const DynamicPluginTensorDesc*, int32_t) noexcept {
  TensorView typical[kMaxInputs], least[kMaxInputs], most[kMaxInputs];
  const int32_t count = input_count < kMaxInputs ? input_count : kMaxInputs;
  view_profile(in, count, Sizes::kTypical, typical);
  view_profile(in, count, Sizes::kLeast, least);
  view_profile(in, count, Sizes::kMost, most);
  size_t workspace_bytes = 0;
  Status status = node_.check(typical, input_count);
  if (status.ok()) status = node_.reserve(least, most, &workspace_bytes);
  if (status.ok()) return 0;
  log_error(node_.name(), status);
  return -1;
}

int32_t PluginV3::getOutputDataTypes(DataType* output_types, int32_t output_count, const DataType* input_types,
                                     int32_t input_count) const noexcept {
  for (int32_t i = 0; i < output_count; ++i) {
    const Status status = node_.output_type(i, input_types, input_count, &output_types[i]);
    if (status.ok()) continue;
    log_error(node_.name(), status);
    return -1;
  }
  return 0;
}

int32_t PluginV3::getOutputShapes(const DimsExprs* inputs, int32_t input_count, const DimsExprs*, int32_t,
                                  DimsExprs* outputs, int32_t output_count, nvinfer1::IExprBuilder& builder) noexcept {
  for (int32_t i = 0; i < output_count; ++i) {
    const Status status = node_.output_shape(i, inputs, input_count, builder, &outputs[i]);
    if (status.ok()) continue;
    log_error(node_.name(), status);
    return -1;
  }
  return 0;
}

bool PluginV3::supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* tensors, int32_t input_count,
                                         int32_t) noexcept {
  const PluginTensorDesc& tensor = tensors[position].desc;
  return Node::takes(position, input_count, tensor.type, tensor.format, tensors[schema::kInputQuery].desc.type);
}

size_t PluginV3::getWorkspaceSize(const DynamicPluginTensorDesc*, int32_t, const DynamicPluginTensorDesc*,
                                  int32_t) const noexcept {
  return node_.reserved_bytes();  // configurePlugin() came before
}

int32_t PluginV3::onShapeChange(const PluginTensorDesc* in, int32_t input_count, const PluginTensorDesc*,
                                int32_t) noexcept {
  TensorView views[kMaxInputs];
  view_tensors(in, input_count < kMaxInputs ? input_count : kMaxInputs, nullptr, views);
  const Status status = node_.check(views, input_count);
  input_count_ = status.ok() ? input_count : 0;
  if (status.ok()) return 0;
  log_error(node_.name(), status);
  return -1;
}

int32_t PluginV3::enqueue(const PluginTensorDesc* in, const PluginTensorDesc*, const void* const* inputs,
                          void* const* outputs, void* workspace, cudaStream_t stream) noexcept {
  TensorView views[kMaxInputs];
  view_tensors(in, input_count_, inputs, views);
  const Status status = node_.enqueue(views, input_count_, outputs, workspace, stream);
  if (status.ok()) return 0;
  log_error(node_.name(), status);
  return -1;
}

nvinfer1::IPluginV3* PluginV3::attachToContext(nvinfer1::IPluginResourceContext*) noexcept { return clone(); }

const nvinfer1::PluginFieldCollection* PluginV3::getFieldsToSerialize() noexcept {
  return fields_.store(list_fields(node_.state()));
}

}  // namespace ortflash::trt

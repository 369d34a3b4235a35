#include "tensorrt/plugin_v2.h"

#include <cstring>
#include <new>
#include <type_traits>

#include "core/status.h"
#include "tensorrt/log.h"

namespace ortflash::trt {
namespace {

using nvinfer1::DataType;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

constexpr int32_t kMaxInputs = schema::kInputCount;

// First in what is stored: "ortflsh1" read as a number. Another layout gets another one.
constexpr uint64_t kMagic = 0x3168736c6674726full;

// The values alone, without AttributeSource's pointer to its functions.
struct Stored {
  uint64_t magic;
  uint64_t count;
  Field fields[FieldList::kCapacity];
};
static_assert(std::is_trivially_copyable_v<Stored>, "it is written as it lies in memory");
static_assert(sizeof(Stored) == kStoredBytes, "");

}  // namespace

void PluginV2::serialize(void* buffer) const noexcept {
  const FieldList list = list_fields(node_.state());
  Stored stored = {};
  stored.magic = kMagic;
  stored.count = list.count();
  for (size_t i = 0; i < list.count(); ++i) stored.fields[i] = list[i];
  std::memcpy(buffer, &stored, sizeof(stored));
}

PluginV2* restore_plugin(const char* name, const void* data, size_t bytes, Status* status) {
  Stored stored;
  if (data == nullptr || bytes != sizeof(stored)) {
    *status = make_status(StatusCode::kInvalidArgument, "the engine holds %zu bytes for this node, not %zu", bytes,
                          sizeof(stored));
    return nullptr;
  }
  std::memcpy(&stored, data, sizeof(stored));
  if (stored.magic != kMagic || stored.count > FieldList::kCapacity) {
    *status =
        make_status(StatusCode::kInvalidArgument, "what the engine holds for this node was not written by ortflash");
    return nullptr;
  }
  FieldList list;
  for (size_t i = 0; status->ok() && i < stored.count; ++i) *status = list.add(stored.fields[i]);
  NodeState state;
  if (status->ok()) *status = read_state(list, /*complete=*/true, &state);
  if (!status->ok()) return nullptr;
  PluginV2* plugin = new (std::nothrow) PluginV2(Node(name, state));
  if (plugin == nullptr) *status = make_status(StatusCode::kUnsupported, "out of memory");
  return plugin;
}

DataType PluginV2::getOutputDataType(int32_t index, const DataType* types, int32_t input_count) const noexcept {
  DataType type = types[schema::kInputQuery];
  const Status status = node_.output_type(index, types, input_count, &type);
  if (!status.ok()) log_error(node_.name(), status);
  return type;  // TensorRT asks supportsFormatCombination() as well, and finds none there
}

nvinfer1::IPluginV2DynamicExt* PluginV2::clone() const noexcept {
  return new (std::nothrow) PluginV2(node_, input_count_);
}

DimsExprs PluginV2::getOutputDimensions(int32_t index, const DimsExprs* inputs, int32_t input_count,
                                        nvinfer1::IExprBuilder& builder) noexcept {
  DimsExprs shape = {};
  const Status status = node_.output_shape(index, inputs, input_count, builder, &shape);
  if (status.ok()) return shape;
  log_error(node_.name(), status);
  shape.nbDims = -1;  // no tensor's rank: TensorRT refuses it
  return shape;
}

bool PluginV2::supportsFormatCombination(int32_t position, const PluginTensorDesc* tensors, int32_t input_count,
                                         int32_t) noexcept {
  const PluginTensorDesc& tensor = tensors[position];
  return Node::takes(position, input_count, tensor.type, tensor.format, tensors[schema::kInputQuery].type);
}

void PluginV2::configurePlugin(const DynamicPluginTensorDesc* in, int32_t input_count, const DynamicPluginTensorDesc*,
                               int32_t) noexcept {
  TensorView least[kMaxInputs], most[kMaxInputs];
  for (int32_t i = 0; i < input_count && i < kMaxInputs; ++i) {
    least[i] = {in[i].desc.type, in[i].min};
    most[i] = {in[i].desc.type, in[i].max};
  }
  // The least and largest sizes are bounds of each axis by itself: one of the two may be no possible call.
  size_t workspace_bytes = 0;
  Status status = node_.check(most, input_count);
  if (!status.ok() && node_.check(least, input_count).ok()) status = {};
  if (status.ok()) status = node_.reserve(least, most, &workspace_bytes);
  refused_ = !status.ok();
  input_count_ = refused_ ? 0 : input_count;
  if (refused_) log_error(node_.name(), status);
}

size_t PluginV2::getWorkspaceSize(const PluginTensorDesc*, int32_t, const PluginTensorDesc*, int32_t) const noexcept {
  return node_.reserved_bytes();  // configurePlugin() came before
}

int32_t PluginV2::enqueue(const PluginTensorDesc* in, const PluginTensorDesc*, const void* const* inputs,
                          void* const* outputs, void* workspace, cudaStream_t stream) noexcept {
  TensorView views[kMaxInputs];
  for (int32_t i = 0; i < input_count_; ++i) views[i] = {in[i].type, in[i].dims, inputs[i]};
  const Status status = node_.enqueue(views, input_count_, outputs, workspace, stream);
  if (status.ok()) return 0;
  log_error(node_.name(), status);
  return -1;
}

}  // namespace ortflash::trt

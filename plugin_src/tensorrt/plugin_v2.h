// FlashAttention as TensorRT 8.6 wants a plugin: IPluginV2DynamicExt.
#pragma once

#include "tensorrt/node.h"
#include "tensorrt/nvinfer.h"

namespace ortflash::trt {

// What is stored in an engine: every value of the node, as a block of bytes of one size.
inline constexpr size_t kStoredBytes = 2 * sizeof(uint64_t) + FieldList::kCapacity * sizeof(Field);

class PluginV2 final : public nvinfer1::IPluginV2DynamicExt {
 public:
  explicit PluginV2(const Node& node, int32_t input_count = 0) : node_(node), input_count_(input_count) {}

  // IPluginV2
  const char* getPluginType() const noexcept override { return schema::kOpName; }
  const char* getPluginVersion() const noexcept override { return schema::kPluginVersion.default_value; }
  int32_t getNbOutputs() const noexcept override { return node_.output_count(); }
  int32_t initialize() noexcept override { return refused_ ? -1 : 0; }
  void terminate() noexcept override {}
  size_t getSerializationSize() const noexcept override { return kStoredBytes; }
  void serialize(void* buffer) const noexcept override;
  void destroy() noexcept override { delete this; }
  void setPluginNamespace(const char*) noexcept override {}  // there is only the one of the schema
  const char* getPluginNamespace() const noexcept override { return schema::kPluginNamespace.default_value; }

  // IPluginV2Ext
  nvinfer1::DataType getOutputDataType(int32_t index, const nvinfer1::DataType* types,
                                       int32_t input_count) const noexcept override;

  // IPluginV2DynamicExt
  nvinfer1::IPluginV2DynamicExt* clone() const noexcept override;
  nvinfer1::DimsExprs getOutputDimensions(int32_t index, const nvinfer1::DimsExprs* inputs, int32_t input_count,
                                          nvinfer1::IExprBuilder& builder) noexcept override;
  bool supportsFormatCombination(int32_t position, const nvinfer1::PluginTensorDesc* tensors, int32_t input_count,
                                 int32_t output_count) noexcept override;
  void configurePlugin(const nvinfer1::DynamicPluginTensorDesc* in, int32_t input_count,
                       const nvinfer1::DynamicPluginTensorDesc* out, int32_t output_count) noexcept override;
  size_t getWorkspaceSize(const nvinfer1::PluginTensorDesc* in, int32_t input_count,
                          const nvinfer1::PluginTensorDesc* out, int32_t output_count) const noexcept override;
  int32_t enqueue(const nvinfer1::PluginTensorDesc* in, const nvinfer1::PluginTensorDesc* out,
                  const void* const* inputs, void* const* outputs, void* workspace,
                  cudaStream_t stream) noexcept override;

 private:
  Node node_;
  int32_t input_count_;   // enqueue() is not told; configurePlugin(), which comes before it, is
  bool refused_ = false;  // by configurePlugin(), which can't say so itself
};

// A plugin from the bytes that serialize() wrote, or null and a sentence in `status`.
PluginV2* restore_plugin(const char* name, const void* data, size_t bytes, Status* status);

}  // namespace ortflash::trt

// FlashAttention as TensorRT 10 and newer want a plugin: IPluginV3 with the three capabilities in one object.
#pragma once

#include "tensorrt/fields.h"
#include "tensorrt/node.h"
#include "tensorrt/nvinfer.h"

namespace ortflash::trt {

class PluginV3 final : public nvinfer1::IPluginV3,
                       public nvinfer1::IPluginV3OneCore,
                       public nvinfer1::IPluginV3OneBuild,
                       public nvinfer1::IPluginV3OneRuntime {
 public:
  explicit PluginV3(const Node& node, int32_t input_count = 0);

  // IPluginV3
  nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  // IPluginV3OneCore
  const char* getPluginName() const noexcept override;
  const char* getPluginVersion() const noexcept override;
  const char* getPluginNamespace() const noexcept override;

  // IPluginV3OneBuild
  int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* in, int32_t input_count,
                          const nvinfer1::DynamicPluginTensorDesc* out, int32_t output_count) noexcept override;
  int32_t getOutputDataTypes(nvinfer1::DataType* output_types, int32_t output_count,
                             const nvinfer1::DataType* input_types, int32_t input_count) const noexcept override;
  int32_t getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                          const nvinfer1::DimsExprs* shape_inputs, int32_t shape_input_count,
                          nvinfer1::DimsExprs* outputs, int32_t output_count,
                          nvinfer1::IExprBuilder& builder) noexcept override;
  bool supportsFormatCombination(int32_t position, const nvinfer1::DynamicPluginTensorDesc* tensors,
                                 int32_t input_count, int32_t output_count) noexcept override;
  int32_t getNbOutputs() const noexcept override { return node_.output_count(); }
  size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* in, int32_t input_count,
                          const nvinfer1::DynamicPluginTensorDesc* out, int32_t output_count) const noexcept override;
  const char* getTimingCacheID() noexcept override { return description_; }
  const char* getMetadataString() noexcept override { return description_; }

  // IPluginV3OneRuntime
  int32_t onShapeChange(const nvinfer1::PluginTensorDesc* in, int32_t input_count,
                        const nvinfer1::PluginTensorDesc* out, int32_t output_count) noexcept override;
  int32_t enqueue(const nvinfer1::PluginTensorDesc* in, const nvinfer1::PluginTensorDesc* out,
                  const void* const* inputs, void* const* outputs, void* workspace,
                  cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

 private:
  Node node_;
  int32_t input_count_ = 0;  // enqueue() is not told; onShapeChange(), which comes before it, is
  char description_[768];    // the attributes, for timing caches and engine inspectors
  StoredFields fields_;
};

}  // namespace ortflash::trt

// The binary interface of TensorRT 8.6, as far as a plugin needs it: for machines without TensorRT's headers. With them
// (ORTFLASH_TENSORRT8_ROOT), NvInferRuntime.h is used instead and this file is not read.
//
// Facts of the ABI only, read in github.com/NVIDIA/TensorRT, include/, at the tags v8.6.0 and v8.6.1; each declaration
// names its header there. nvinfer10.h says which rules of the C++ ABI this relies on.
//
// Against TensorRT 10: sizes are 32-bit, descriptions of dynamic tensors have no typical sizes, interfaces tell their
// version by a number, there is no bfloat16, and bool tensors don't go to plugins.
#pragma once

#include <cstddef>
#include <cstdint>

using cudaStream_t = struct CUstream_st*;  // as in cuda_runtime_api.h
struct cudnnContext;
struct cublasContext;

namespace nvinfer1 {

// NvInferVersion.h; NvInferRuntimeBase.h: major * 1000 + minor * 100 + patch. The oldest release that is asked for.
inline constexpr int32_t kTensorRTVersion = 8600;

// NvInferRuntimeBase.h
enum class DataType : int32_t { kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3, kBOOL = 4, kUINT8 = 5, kFP8 = 6 };
enum class TensorFormat : int32_t { kLINEAR = 0 };  // the first of the memory formats, row-major
struct Dims {                                       // Dims32; -1 is an unknown size
  static constexpr int32_t MAX_DIMS = 8;
  int32_t nbDims;
  int32_t d[MAX_DIMS];
};
class IGpuAllocator;

// NvInferRuntimePlugin.h
using PluginFormat = TensorFormat;
struct PluginTensorDesc {
  Dims dims;
  DataType type;
  TensorFormat format;
  float scale;  // of int8 tensors
};
enum class PluginVersion : uint8_t { kV2 = 0, kV2_EXT = 1, kV2_IOEXT = 2, kV2_DYNAMICEXT = 3 };
enum class PluginFieldType : int32_t {
  kFLOAT16 = 0,
  kFLOAT32 = 1,
  kFLOAT64 = 2,
  kINT8 = 3,
  kINT16 = 4,
  kINT32 = 5,
  kCHAR = 6,
  kDIMS = 7,
  kUNKNOWN = 8,
};
struct PluginField {
  const char* name = nullptr;
  const void* data = nullptr;
  PluginFieldType type = PluginFieldType::kUNKNOWN;
  int32_t length = 0;  // elements of `type`
};
struct PluginFieldCollection {
  int32_t nbFields;
  const PluginField* fields;
};

class IPluginV2 {
 public:
  virtual int32_t getTensorRTVersion() const noexcept { return kTensorRTVersion; }
  virtual const char* getPluginType() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual int32_t getNbOutputs() const noexcept = 0;
  virtual Dims getOutputDimensions(int32_t index, const Dims* inputs, int32_t nbInputDims) noexcept = 0;
  virtual bool supportsFormat(DataType type, PluginFormat format) const noexcept = 0;
  virtual void configureWithFormat(const Dims*, int32_t, const Dims*, int32_t, DataType, PluginFormat,
                                   int32_t) noexcept = 0;
  virtual int32_t initialize() noexcept = 0;
  virtual void terminate() noexcept = 0;
  virtual size_t getWorkspaceSize(int32_t maxBatchSize) const noexcept = 0;
  virtual int32_t enqueue(int32_t batchSize, const void* const* inputs, void* const* outputs, void* workspace,
                          cudaStream_t stream) noexcept = 0;
  virtual size_t getSerializationSize() const noexcept = 0;
  virtual void serialize(void* buffer) const noexcept = 0;
  virtual void destroy() noexcept = 0;
  virtual IPluginV2* clone() const noexcept = 0;
  virtual void setPluginNamespace(const char* pluginNamespace) noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
  virtual ~IPluginV2() noexcept = default;
};

class IPluginV2Ext : public IPluginV2 {
 public:
  virtual DataType getOutputDataType(int32_t index, const DataType* inputTypes, int32_t nbInputs) const noexcept = 0;
  virtual bool isOutputBroadcastAcrossBatch(int32_t, const bool*, int32_t) const noexcept = 0;
  virtual bool canBroadcastInputAcrossBatch(int32_t inputIndex) const noexcept = 0;
  virtual void configurePlugin(const Dims*, int32_t, const Dims*, int32_t, const DataType*, const DataType*,
                               const bool*, const bool*, PluginFormat, int32_t) noexcept = 0;
  virtual void attachToContext(cudnnContext*, cublasContext*, IGpuAllocator*) noexcept {}
  virtual void detachFromContext() noexcept {}
  IPluginV2Ext* clone() const noexcept override = 0;

 protected:
  int32_t getTensorRTVersion() const noexcept override {
    return static_cast<int32_t>(PluginVersion::kV2_EXT) << 24 | kTensorRTVersion;
  }
  void configureWithFormat(const Dims*, int32_t, const Dims*, int32_t, DataType, PluginFormat,
                           int32_t) noexcept override {}
};

class IPluginV2;
class IPluginCreator {
 public:
  virtual int32_t getTensorRTVersion() const noexcept { return kTensorRTVersion; }
  virtual const char* getPluginName() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual const PluginFieldCollection* getFieldNames() noexcept = 0;
  virtual IPluginV2* createPlugin(const char* name, const PluginFieldCollection* fc) noexcept = 0;
  virtual IPluginV2* deserializePlugin(const char* name, const void* serialData, size_t serialLength) noexcept = 0;
  virtual void setPluginNamespace(const char* pluginNamespace) noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
  virtual ~IPluginCreator() = default;
};

// NvInferRuntime.h
struct DynamicPluginTensorDesc {
  PluginTensorDesc desc;
  Dims min;
  Dims max;
};
enum class DimensionOperation : int32_t { kSUM = 0, kPROD = 1, kFLOOR_DIV = 7 };

// NvInferImpl.h: what a call on IDimensionExpr or IExprBuilder ends in. Both have VRoot's virtual destructor first.
class IDimensionExpr;
namespace apiv {
class VDimensionExpr {
 public:
  virtual ~VDimensionExpr() noexcept = default;
  virtual bool isConstant() const = 0;
  virtual int32_t getConstantValue() const = 0;
};
class VExprBuilder {
 public:
  virtual ~VExprBuilder() noexcept = default;
  virtual const IDimensionExpr* constant(int32_t value) = 0;
  virtual const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& first,
                                          const IDimensionExpr& second) = 0;
};
}  // namespace apiv

// NvInferRuntime.h. Objects of TensorRT's: a virtual destructor (INoCopy), then a pointer to the implementation.
class IDimensionExpr {
 public:
  bool isConstant() const noexcept { return mImpl->isConstant(); }
  int32_t getConstantValue() const noexcept { return mImpl->getConstantValue(); }

 protected:
  virtual ~IDimensionExpr() noexcept = default;
  apiv::VDimensionExpr* mImpl;
};
class IExprBuilder {
 public:
  const IDimensionExpr* constant(int32_t value) noexcept { return mImpl->constant(value); }
  const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& first,
                                  const IDimensionExpr& second) noexcept {
    return mImpl->operation(op, first, second);
  }

 protected:
  virtual ~IExprBuilder() noexcept = default;
  apiv::VExprBuilder* mImpl;
};
struct DimsExprs {
  int32_t nbDims;
  const IDimensionExpr* d[Dims::MAX_DIMS];
};

// Its final overrides of the older interfaces' functions are never called: TensorRT asks for the version first.
class IPluginV2DynamicExt : public IPluginV2Ext {
 public:
  IPluginV2DynamicExt* clone() const noexcept override = 0;
  virtual DimsExprs getOutputDimensions(int32_t outputIndex, const DimsExprs* inputs, int32_t nbInputs,
                                        IExprBuilder& exprBuilder) noexcept = 0;
  virtual bool supportsFormatCombination(int32_t pos, const PluginTensorDesc* inOut, int32_t nbInputs,
                                         int32_t nbOutputs) noexcept = 0;
  virtual void configurePlugin(const DynamicPluginTensorDesc* in, int32_t nbInputs, const DynamicPluginTensorDesc* out,
                               int32_t nbOutputs) noexcept = 0;
  virtual size_t getWorkspaceSize(const PluginTensorDesc* inputs, int32_t nbInputs, const PluginTensorDesc* outputs,
                                  int32_t nbOutputs) const noexcept = 0;
  virtual int32_t enqueue(const PluginTensorDesc* inputDesc, const PluginTensorDesc* outputDesc,
                          const void* const* inputs, void* const* outputs, void* workspace,
                          cudaStream_t stream) noexcept = 0;

 protected:
  int32_t getTensorRTVersion() const noexcept override {
    return static_cast<int32_t>(PluginVersion::kV2_DYNAMICEXT) << 24 | kTensorRTVersion;
  }

 private:
  void configurePlugin(const Dims*, int32_t, const Dims*, int32_t, const DataType*, const DataType*, const bool*,
                       const bool*, PluginFormat, int32_t) noexcept final {}
  bool supportsFormat(DataType, PluginFormat) const noexcept final { return false; }
  Dims getOutputDimensions(int32_t, const Dims*, int32_t) noexcept final { return {-1, {}}; }
  bool isOutputBroadcastAcrossBatch(int32_t, const bool*, int32_t) const noexcept final { return false; }
  bool canBroadcastInputAcrossBatch(int32_t) const noexcept final { return true; }
  size_t getWorkspaceSize(int32_t) const noexcept final { return 0; }
  int32_t enqueue(int32_t, const void* const*, void* const*, void*, cudaStream_t) noexcept final { return 1; }
};

}  // namespace nvinfer1

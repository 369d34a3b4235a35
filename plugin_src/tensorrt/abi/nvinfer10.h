// The binary interface of TensorRT 10 and newer (and TensorRT-RTX), as far as a plugin needs it: for machines without
// TensorRT's headers. With them (ORTFLASH_TENSORRT_ROOT), NvInferRuntime.h is used instead and this file is not read.
//
// Everything here is a fact of the ABI: the order of virtual functions, the order and width of fields, the values of
// enumerators, and the names in getInterfaceInfo(). It was read in github.com/NVIDIA/TensorRT, include/, at the tags
// v10.0.0, v10.10.0, v10.16, v11.0 and v11.1, which agree on all of it; each declaration names its header and what it
// is there. TensorRT-RTX publishes no such headers: it was tried (1.7.1; tests/test_trt_engine.py).
//
// Rules of the Itanium C++ ABI that this relies on: virtual functions have slots in the order of their declaration,
// those of the base first; a virtual destructor has two; a struct of up to 16 bytes comes back in registers.
#pragma once

#include <cstddef>
#include <cstdint>

using cudaStream_t = struct CUstream_st*;  // as in cuda_runtime_api.h

namespace nvinfer1 {

// NvInferRuntimeBase.h. Later versions only add enumerators (kINT4, kFP4, kE8M0).
enum class DataType : int32_t {
  kFLOAT = 0,
  kHALF = 1,
  kINT8 = 2,
  kINT32 = 3,
  kBOOL = 4,
  kUINT8 = 5,
  kFP8 = 6,
  kBF16 = 7,
  kINT64 = 8,
};

// NvInferRuntimeBase.h: the first of the memory formats, row-major.
enum class TensorFormat : int32_t { kLINEAR = 0 };

// NvInferRuntimeBase.h: Dims64, whose sizes became 64-bit with 10.0. -1 is an unknown size.
struct Dims {
  static constexpr int32_t MAX_DIMS = 8;
  int32_t nbDims;
  int64_t d[MAX_DIMS];
};

// NvInferRuntimeBase.h
enum class APILanguage : int32_t { kCPP = 0, kPYTHON = 1 };
struct InterfaceInfo {
  const char* kind;
  int32_t major;
  int32_t minor;
};
class IVersionedInterface {
 public:
  virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
  virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
  virtual ~IVersionedInterface() noexcept = default;
};

// NvInferPluginBase.h (before 10.10: NvInferRuntimePlugin.h)
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
  kBF16 = 9,
  kINT64 = 10,
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
enum class TensorRTPhase : int32_t { kBUILD = 0, kRUNTIME = 1 };
enum class PluginCapabilityType : int32_t { kCORE = 0, kBUILD = 1, kRUNTIME = 2 };

// NvInferRuntimePlugin.h
struct PluginTensorDesc {
  Dims dims;
  DataType type;
  TensorFormat format;
  float scale;  // of int8 tensors
};

// NvInferRuntime.h
struct DynamicPluginTensorDesc {
  PluginTensorDesc desc;
  Dims min;
  Dims max;
  Dims opt;
};
enum class DimensionOperation : int32_t { kSUM = 0, kPROD = 1, kFLOOR_DIV = 7 };

// NvInferImpl.h: what a call on IDimensionExpr or IExprBuilder ends in. Both have VRoot's virtual destructor first.
class IDimensionExpr;
namespace apiv {
class VDimensionExpr {
 public:
  virtual ~VDimensionExpr() noexcept = default;
  virtual bool isConstant() const = 0;
  virtual int64_t getConstantValue() const = 0;
  virtual bool isSizeTensor() const = 0;
};
class VExprBuilder {
 public:
  virtual ~VExprBuilder() noexcept = default;
  virtual const IDimensionExpr* constant(int64_t value) = 0;
  virtual const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& first,
                                          const IDimensionExpr& second) = 0;
  virtual const IDimensionExpr* declareSizeTensor(int32_t output_index, const IDimensionExpr& opt,
                                                  const IDimensionExpr& upper) = 0;
};
}  // namespace apiv

// NvInferRuntime.h. Objects of TensorRT's: a virtual destructor (INoCopy), then a pointer to the implementation.
class IDimensionExpr {
 public:
  bool isConstant() const noexcept { return mImpl->isConstant(); }
  int64_t getConstantValue() const noexcept { return mImpl->getConstantValue(); }

 protected:
  virtual ~IDimensionExpr() noexcept = default;
  apiv::VDimensionExpr* mImpl;
};
class IExprBuilder {
 public:
  const IDimensionExpr* constant(int64_t value) noexcept { return mImpl->constant(value); }
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

class IPluginResourceContext;  // handed to attachToContext(); not used here

// The interfaces of a plugin. TensorRT's headers have them in this inner namespace; type_info compares the full names.
namespace v_1_0 {

// NvInferPluginBase.h (before 10.10: NvInferRuntime.h)
class IPluginCapability : public IVersionedInterface {};
class IPluginV3 : public IVersionedInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN", 1, 0}; }
  virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept = 0;
  virtual IPluginV3* clone() noexcept = 0;
};

// NvInferRuntime.h
class IPluginV3OneCore : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
  virtual const char* getPluginName() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
};
class IPluginV3OneBuild : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
  virtual int32_t configurePlugin(const DynamicPluginTensorDesc* in, int32_t nbInputs,
                                  const DynamicPluginTensorDesc* out, int32_t nbOutputs) noexcept = 0;
  virtual int32_t getOutputDataTypes(DataType* outputTypes, int32_t nbOutputs, const DataType* inputTypes,
                                     int32_t nbInputs) const noexcept = 0;
  virtual int32_t getOutputShapes(const DimsExprs* inputs, int32_t nbInputs, const DimsExprs* shapeInputs,
                                  int32_t nbShapeInputs, DimsExprs* outputs, int32_t nbOutputs,
                                  IExprBuilder& exprBuilder) noexcept = 0;
  virtual bool supportsFormatCombination(int32_t pos, const DynamicPluginTensorDesc* inOut, int32_t nbInputs,
                                         int32_t nbOutputs) noexcept = 0;
  virtual int32_t getNbOutputs() const noexcept = 0;
  virtual size_t getWorkspaceSize(const DynamicPluginTensorDesc*, int32_t, const DynamicPluginTensorDesc*,
                                  int32_t) const noexcept {
    return 0;
  }
  virtual int32_t getValidTactics(int32_t*, int32_t) noexcept { return 0; }
  virtual int32_t getNbTactics() noexcept { return 0; }
  virtual const char* getTimingCacheID() noexcept { return nullptr; }
  virtual int32_t getFormatCombinationLimit() noexcept { return 100; }
  virtual const char* getMetadataString() noexcept { return nullptr; }
};
class IPluginV3OneRuntime : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
  virtual int32_t setTactic(int32_t) noexcept { return 0; }
  virtual int32_t onShapeChange(const PluginTensorDesc* in, int32_t nbInputs, const PluginTensorDesc* out,
                                int32_t nbOutputs) noexcept = 0;
  virtual int32_t enqueue(const PluginTensorDesc* inputDesc, const PluginTensorDesc* outputDesc,
                          const void* const* inputs, void* const* outputs, void* workspace,
                          cudaStream_t stream) noexcept = 0;
  virtual IPluginV3* attachToContext(IPluginResourceContext* context) noexcept = 0;
  virtual const PluginFieldCollection* getFieldsToSerialize() noexcept = 0;
};

// NvInferPluginBase.h (before 10.10: NvInferRuntimePlugin.h)
class IPluginCreatorInterface : public IVersionedInterface {};

// NvInferRuntime.h
class IPluginCreatorV3One : public IPluginCreatorInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
  virtual IPluginV3* createPlugin(const char* name, const PluginFieldCollection* fc, TensorRTPhase phase) noexcept = 0;
  virtual const PluginFieldCollection* getFieldNames() noexcept = 0;
  virtual const char* getPluginName() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
};

}  // namespace v_1_0

using v_1_0::IPluginCapability;
using v_1_0::IPluginCreatorInterface;
using v_1_0::IPluginCreatorV3One;
using v_1_0::IPluginV3;
using v_1_0::IPluginV3OneBuild;
using v_1_0::IPluginV3OneCore;
using v_1_0::IPluginV3OneRuntime;

}  // namespace nvinfer1

// Prints the binary layout of everything that the plugins use: sizes, offsets of fields, slots of virtual functions,
// values of enumerators. test_trt_abi.py compiles it against NVIDIA's headers and against tensorrt/abi, and compares.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "tensorrt/nvinfer.h"

using namespace nvinfer1;

namespace {

// The Itanium C++ ABI: a pointer to a virtual member function is 1 + the offset of its slot in bytes.
template <typename Function>
long slot(Function function) {
  std::ptrdiff_t words[2];
  static_assert(sizeof(words) == sizeof(function), "");
  std::memcpy(words, &function, sizeof(words));
  return words[0] % 2 == 1 ? static_cast<long>(words[0] / sizeof(void*)) : -1;
}

#define SIZE(type) std::printf("sizeof %s %zu\n", #type, sizeof(type))
#define FIELD(type, name) std::printf("offset %s.%s %zu\n", #type, #name, offsetof(type, name))
#define SLOT(type, name) std::printf("slot %s.%s %ld\n", #type, #name, slot(&type::name))
#define OVERLOAD(type, name, signature) \
  std::printf("slot %s.%s %ld\n", #type, #name " " #signature, slot(static_cast<signature>(&type::name)))
#define VALUE(name) std::printf("value %s %d\n", #name, static_cast<int>(name))

void common() {
  SIZE(Dims);
  FIELD(Dims, nbDims);
  FIELD(Dims, d);
  SIZE(PluginTensorDesc);
  FIELD(PluginTensorDesc, dims);
  FIELD(PluginTensorDesc, type);
  FIELD(PluginTensorDesc, format);
  FIELD(PluginTensorDesc, scale);
  SIZE(DynamicPluginTensorDesc);
  FIELD(DynamicPluginTensorDesc, desc);
  FIELD(DynamicPluginTensorDesc, min);
  FIELD(DynamicPluginTensorDesc, max);
  SIZE(PluginField);
  FIELD(PluginField, name);
  FIELD(PluginField, data);
  FIELD(PluginField, type);
  FIELD(PluginField, length);
  SIZE(PluginFieldCollection);
  FIELD(PluginFieldCollection, nbFields);
  FIELD(PluginFieldCollection, fields);
  SIZE(DimsExprs);
  FIELD(DimsExprs, nbDims);
  FIELD(DimsExprs, d);
  SIZE(IDimensionExpr);
  SIZE(IExprBuilder);
  SLOT(apiv::VDimensionExpr, isConstant);
  SLOT(apiv::VDimensionExpr, getConstantValue);
  SLOT(apiv::VExprBuilder, constant);
  SLOT(apiv::VExprBuilder, operation);
  VALUE(DataType::kFLOAT);
  VALUE(DataType::kHALF);
  VALUE(DataType::kINT32);
  VALUE(DataType::kBOOL);
  VALUE(TensorFormat::kLINEAR);
  VALUE(PluginFieldType::kFLOAT32);
  VALUE(PluginFieldType::kFLOAT64);
  VALUE(PluginFieldType::kINT32);
  VALUE(PluginFieldType::kCHAR);
  VALUE(PluginFieldType::kUNKNOWN);
  VALUE(DimensionOperation::kPROD);
  VALUE(DimensionOperation::kFLOOR_DIV);
}

}  // namespace

#if ORTFLASH_TENSORRT_MAJOR == 8

int main() {
  common();
  VALUE(PluginVersion::kV2_DYNAMICEXT);
  SLOT(IPluginV2DynamicExt, getPluginType);
  SLOT(IPluginV2DynamicExt, getPluginVersion);
  SLOT(IPluginV2DynamicExt, getNbOutputs);
  OVERLOAD(IPluginV2, getOutputDimensions, Dims (IPluginV2::*)(int32_t, const Dims*, int32_t) noexcept);
  SLOT(IPluginV2, supportsFormat);
  SLOT(IPluginV2DynamicExt, initialize);
  SLOT(IPluginV2DynamicExt, terminate);
  SLOT(IPluginV2, getWorkspaceSize);
  SLOT(IPluginV2, enqueue);
  SLOT(IPluginV2DynamicExt, getSerializationSize);
  SLOT(IPluginV2DynamicExt, serialize);
  SLOT(IPluginV2DynamicExt, destroy);
  SLOT(IPluginV2DynamicExt, clone);
  SLOT(IPluginV2DynamicExt, setPluginNamespace);
  SLOT(IPluginV2DynamicExt, getPluginNamespace);
  SLOT(IPluginV2DynamicExt, getOutputDataType);
  SLOT(IPluginV2Ext, isOutputBroadcastAcrossBatch);
  SLOT(IPluginV2Ext, canBroadcastInputAcrossBatch);
  SLOT(IPluginV2Ext, configurePlugin);
  SLOT(IPluginV2DynamicExt, attachToContext);
  SLOT(IPluginV2DynamicExt, detachFromContext);
  OVERLOAD(IPluginV2DynamicExt, getOutputDimensions,
           DimsExprs (IPluginV2DynamicExt::*)(int32_t, const DimsExprs*, int32_t, IExprBuilder&) noexcept);
  SLOT(IPluginV2DynamicExt, supportsFormatCombination);
  OVERLOAD(IPluginV2DynamicExt, configurePlugin,
           void (IPluginV2DynamicExt::*)(const DynamicPluginTensorDesc*, int32_t, const DynamicPluginTensorDesc*,
                                         int32_t) noexcept);
  OVERLOAD(IPluginV2DynamicExt, getWorkspaceSize,
           size_t (IPluginV2DynamicExt::*)(const PluginTensorDesc*, int32_t, const PluginTensorDesc*, int32_t)
               const noexcept);
  OVERLOAD(IPluginV2DynamicExt, enqueue,
           int32_t (IPluginV2DynamicExt::*)(const PluginTensorDesc*, const PluginTensorDesc*, const void* const*,
                                            void* const*, void*, cudaStream_t) noexcept);
  SLOT(IPluginCreator, getTensorRTVersion);
  SLOT(IPluginCreator, getPluginName);
  SLOT(IPluginCreator, getPluginVersion);
  SLOT(IPluginCreator, getFieldNames);
  SLOT(IPluginCreator, createPlugin);
  SLOT(IPluginCreator, deserializePlugin);
  SLOT(IPluginCreator, setPluginNamespace);
  SLOT(IPluginCreator, getPluginNamespace);
}

#else

int main() {
  common();
  FIELD(DynamicPluginTensorDesc, opt);
  SIZE(InterfaceInfo);
  FIELD(InterfaceInfo, kind);
  FIELD(InterfaceInfo, major);
  FIELD(InterfaceInfo, minor);
  VALUE(DataType::kBF16);
  VALUE(PluginFieldType::kINT64);
  VALUE(PluginCapabilityType::kCORE);
  VALUE(PluginCapabilityType::kBUILD);
  VALUE(PluginCapabilityType::kRUNTIME);
  VALUE(TensorRTPhase::kBUILD);
  VALUE(TensorRTPhase::kRUNTIME);
  SLOT(IVersionedInterface, getAPILanguage);
  SLOT(IVersionedInterface, getInterfaceInfo);
  SLOT(IPluginV3, getCapabilityInterface);
  SLOT(IPluginV3, clone);
  SLOT(IPluginV3OneCore, getPluginName);
  SLOT(IPluginV3OneCore, getPluginVersion);
  SLOT(IPluginV3OneCore, getPluginNamespace);
  SLOT(IPluginV3OneBuild, configurePlugin);
  SLOT(IPluginV3OneBuild, getOutputDataTypes);
  SLOT(IPluginV3OneBuild, getOutputShapes);
  SLOT(IPluginV3OneBuild, supportsFormatCombination);
  SLOT(IPluginV3OneBuild, getNbOutputs);
  SLOT(IPluginV3OneBuild, getWorkspaceSize);
  SLOT(IPluginV3OneBuild, getValidTactics);
  SLOT(IPluginV3OneBuild, getNbTactics);
  SLOT(IPluginV3OneBuild, getTimingCacheID);
  SLOT(IPluginV3OneBuild, getFormatCombinationLimit);
  SLOT(IPluginV3OneBuild, getMetadataString);
  SLOT(IPluginV3OneRuntime, setTactic);
  SLOT(IPluginV3OneRuntime, onShapeChange);
  SLOT(IPluginV3OneRuntime, enqueue);
  SLOT(IPluginV3OneRuntime, attachToContext);
  SLOT(IPluginV3OneRuntime, getFieldsToSerialize);
  SLOT(IPluginCreatorV3One, createPlugin);
  SLOT(IPluginCreatorV3One, getFieldNames);
  SLOT(IPluginCreatorV3One, getPluginName);
  SLOT(IPluginCreatorV3One, getPluginVersion);
  SLOT(IPluginCreatorV3One, getPluginNamespace);
}

#endif

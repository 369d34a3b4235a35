// trt8_slots.h against NVIDIA's headers of TensorRT 8.6; test_abi.py compiles and runs it where an SDK is at hand. The
// exit status is the number of differences.
#include <NvInfer.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "trt8_slots.h"

namespace {

int differences = 0;

template <typename Function>
void slot(const char* name, Function function, int ours) {
  std::ptrdiff_t words[2];
  std::memcpy(words, &function, sizeof(words));
  const int theirs = words[0] % 2 == 1 ? static_cast<int>(words[0] / sizeof(void*)) : -1;
  if (theirs == ours) return;
  std::printf("%s: %d in the header, %d here\n", name, theirs, ours);
  ++differences;
}

void value(const char* name, int theirs, int ours) {
  if (theirs == ours) return;
  std::printf("%s: %d in the header, %d here\n", name, theirs, ours);
  ++differences;
}

}  // namespace

#define SLOT(type, function, ours) slot(#type "::" #function, &nvinfer1::type::function, slots::ours)
#define VALUE(name, ours) value(#name, static_cast<int>(nvinfer1::name), slots::ours)

int main() {
  SLOT(apiv::VBuilder, createBuilderConfig, kBuilderCreateConfig);
  SLOT(apiv::VBuilder, createNetworkV2, kBuilderCreateNetwork);
  SLOT(apiv::VBuilder, createOptimizationProfile, kBuilderCreateProfile);
  SLOT(apiv::VBuilder, buildSerializedNetwork, kBuilderBuild);
  SLOT(apiv::VBuilder, getPluginRegistry, kBuilderGetRegistry);
  SLOT(apiv::VNetworkDefinition, addInput, kNetworkAddInput);
  SLOT(apiv::VNetworkDefinition, addPluginV2, kNetworkAddPlugin);
  SLOT(apiv::VNetworkDefinition, addConstant, kNetworkAddConstant);
  SLOT(apiv::VNetworkDefinition, addCast, kNetworkAddCast);
  SLOT(INetworkDefinition, getBuilder, kNetworkGetBuilder);
  SLOT(apiv::VTensor, setName, kTensorSetName);
  SLOT(apiv::VTensor, getName, kTensorGetName);
  SLOT(apiv::VTensor, getDimensions, kTensorGetDimensions);
  SLOT(apiv::VTensor, setType, kTensorSetType);
  SLOT(apiv::VTensor, getType, kTensorGetType);
  SLOT(apiv::VLayer, setName, kLayerSetName);
  SLOT(apiv::VLayer, getName, kLayerGetName);
  SLOT(apiv::VLayer, getNbOutputs, kLayerGetNbOutputs);
  SLOT(apiv::VLayer, getOutput, kLayerGetOutput);
  SLOT(apiv::VBuilderConfig, setFlag, kConfigSetFlag);
  SLOT(apiv::VBuilderConfig, addOptimizationProfile, kConfigAddProfile);
  SLOT(apiv::VBuilderConfig, setProfilingVerbosity, kConfigSetProfilingVerbosity);
  SLOT(apiv::VBuilderConfig, setTacticSources, kConfigSetTacticSources);
  SLOT(apiv::VBuilderConfig, createTimingCache, kConfigCreateTimingCache);
  SLOT(apiv::VBuilderConfig, setTimingCache, kConfigSetTimingCache);
  SLOT(apiv::VBuilderConfig, getTimingCache, kConfigGetTimingCache);
  SLOT(apiv::VBuilderConfig, setMemoryPoolLimit, kConfigSetMemoryPoolLimit);
  SLOT(apiv::VBuilderConfig, setBuilderOptimizationLevel, kConfigSetOptimizationLevel);
  SLOT(apiv::VTimingCache, serialize, kTimingCacheSerialize);
  SLOT(apiv::VOptimizationProfile, setDimensions, kProfileSetDimensions);
  SLOT(apiv::VHostMemory, data, kMemoryData);
  SLOT(apiv::VHostMemory, size, kMemorySize);
  slot("VRuntime::deserializeCudaEngine",
       static_cast<nvinfer1::ICudaEngine* (nvinfer1::apiv::VRuntime::*)(const void*, std::size_t,
                                                                        nvinfer1::IPluginFactory*) noexcept>(
           &nvinfer1::apiv::VRuntime::deserializeCudaEngine),
       slots::kRuntimeDeserialize);
  SLOT(apiv::VCudaEngine, createExecutionContext, kEngineCreateContext);
  SLOT(apiv::VCudaEngine, getDeviceMemorySize, kEngineDeviceMemory);
  SLOT(apiv::VCudaEngine, createEngineInspector, kEngineCreateInspector);
  SLOT(apiv::VCudaEngine, getTensorShape, kEngineGetTensorShape);
  SLOT(apiv::VCudaEngine, getTensorDataType, kEngineGetTensorDataType);
  SLOT(apiv::VCudaEngine, isShapeInferenceIO, kEngineIsShapeInferenceIO);
  SLOT(apiv::VCudaEngine, getTensorIOMode, kEngineGetTensorIOMode);
  SLOT(apiv::VCudaEngine, getProfileShape, kEngineGetProfileShape);
  SLOT(apiv::VCudaEngine, getNbIOTensors, kEngineGetNbIOTensors);
  SLOT(apiv::VCudaEngine, getIOTensorName, kEngineGetIOTensorName);
  SLOT(apiv::VEngineInspector, getEngineInformation, kInspectorGetEngineInformation);
  SLOT(apiv::VExecutionContext, setInputShape, kContextSetInputShape);
  SLOT(apiv::VExecutionContext, getTensorShape, kContextGetTensorShape);
  SLOT(apiv::VExecutionContext, setTensorAddress, kContextSetTensorAddress);
  SLOT(apiv::VExecutionContext, enqueueV3, kContextEnqueue);
  slot("IPluginRegistry::getPluginCreator", &nvinfer1::IPluginRegistry::getPluginCreator, slots::kRegistryGetCreator);
  constexpr bool kIs860 = NV_TENSORRT_PATCH == 0;
  slot("IPluginRegistry::loadLibrary", &nvinfer1::IPluginRegistry::loadLibrary,
       kIs860 ? slots::kRegistryLoadLibraryOf860 : slots::kRegistryLoadLibraryOf861);
  VALUE(NetworkDefinitionCreationFlag::kEXPLICIT_BATCH, kExplicitBatch);
  VALUE(BuilderFlag::kFP16, kFp16);
  VALUE(MemoryPoolType::kWORKSPACE, kWorkspace);
  VALUE(ProfilingVerbosity::kDETAILED, kDetailed);
  VALUE(LayerInformationFormat::kJSON, kJson);
  VALUE(TensorIOMode::kINPUT, kInput);
  return differences;
}

// Where TensorRT 8.6 has what trt8.cc calls. Sources: see there.
#pragma once

#include <cstdint>

namespace slots {

inline constexpr int32_t kTensorRTVersion = 8600;
inline constexpr int kParserVersion = 100;

// NvInfer.h, NvInferRuntime.h: values of enumerators.
inline constexpr int kExplicitBatch = 0;  // NetworkDefinitionCreationFlag
inline constexpr int kFp16 = 0;           // BuilderFlag
inline constexpr int kWorkspace = 0;      // MemoryPoolType
inline constexpr int kDetailed = 2;       // ProfilingVerbosity
inline constexpr int kJson = 1;           // LayerInformationFormat
inline constexpr int kInput = 1;          // TensorIOMode

// NvInferImpl.h: virtual functions of the interfaces in namespace apiv; the destructor has 0 and 1.
inline constexpr int kBuilderCreateConfig = 9;
inline constexpr int kBuilderCreateNetwork = 11;
inline constexpr int kBuilderCreateProfile = 12;
inline constexpr int kBuilderBuild = 17;
inline constexpr int kBuilderGetRegistry = 22;
inline constexpr int kNetworkAddInput = 2;
inline constexpr int kNetworkAddPlugin = 33;
inline constexpr int kNetworkAddConstant = 28;
inline constexpr int kNetworkAddCast = 68;
inline constexpr int kTensorSetName = 2;
inline constexpr int kTensorGetName = 3;
inline constexpr int kTensorGetDimensions = 5;
inline constexpr int kTensorSetType = 6;
inline constexpr int kTensorGetType = 7;
inline constexpr int kLayerSetName = 3;
inline constexpr int kLayerGetName = 4;
inline constexpr int kLayerGetNbOutputs = 7;
inline constexpr int kLayerGetOutput = 8;
inline constexpr int kConfigSetFlag = 15;
inline constexpr int kConfigAddProfile = 29;
inline constexpr int kConfigSetProfilingVerbosity = 31;
inline constexpr int kConfigSetTacticSources = 42;
inline constexpr int kConfigCreateTimingCache = 44;
inline constexpr int kConfigSetTimingCache = 45;
inline constexpr int kConfigGetTimingCache = 46;
inline constexpr int kConfigSetMemoryPoolLimit = 47;
inline constexpr int kConfigSetOptimizationLevel = 51;
inline constexpr int kTimingCacheSerialize = 2;
inline constexpr int kProfileSetDimensions = 2;
inline constexpr int kMemoryData = 2;
inline constexpr int kMemorySize = 3;
inline constexpr int kRuntimeDeserialize = 2;
inline constexpr int kEngineCreateContext = 11;
inline constexpr int kEngineDeviceMemory = 14;
inline constexpr int kEngineCreateInspector = 33;
inline constexpr int kEngineGetTensorShape = 34;
inline constexpr int kEngineGetTensorDataType = 35;
inline constexpr int kEngineIsShapeInferenceIO = 37;
inline constexpr int kEngineGetTensorIOMode = 38;
inline constexpr int kEngineGetProfileShape = 44;
inline constexpr int kEngineGetNbIOTensors = 45;
inline constexpr int kEngineGetIOTensorName = 46;
inline constexpr int kInspectorGetEngineInformation = 5;
inline constexpr int kContextSetInputShape = 29;
inline constexpr int kContextGetTensorShape = 30;
inline constexpr int kContextSetTensorAddress = 32;
inline constexpr int kContextEnqueue = 44;  // enqueueV3

// NvInfer.h: INetworkDefinition::getBuilder, which is virtual itself.
inline constexpr int kNetworkGetBuilder = 2;

// NvInferRuntimeCommon.h: IPluginRegistry::getPluginCreator; and loadLibrary, which 8.6.1 has elsewhere.
inline constexpr int kRegistryGetCreator = 2;
inline constexpr int kRegistryLoadLibraryOf860 = 5;
inline constexpr int kRegistryLoadLibraryOf861 = 10;

// NvOnnxParser.h: IParser. parse, parseFromFile, supportsModel, parseWithWeightDescriptors, supportsOperator, destroy.
inline constexpr int kParserParse = 0;
inline constexpr int kParserDestroy = 5;

}  // namespace slots

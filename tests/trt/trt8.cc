// TensorRT 8.6 itself, called through ctypes (trt8.py): parse, build, load and run engines on a machine that has its
// libraries but neither its headers nor a Python for its bindings.
//
// The numbers below are the places of virtual functions in the interfaces behind TensorRT's objects (apiv::V...), read
// in github.com/NVIDIA/TensorRT, include/NvInferImpl.h, at v8.6.0 and v8.6.1; the parser's are in onnx/onnx-tensorrt,
// NvOnnxParser.h, branch 8.6-GA. test_trt_abi compares them with the headers where an SDK is at hand.
#include <vector>

#include "driver.h"
#include "trt8_slots.h"

namespace {

using namespace nvinfer1;

// Every object of TensorRT's that isn't the parser: a virtual destructor, and what does the work.
class Object {
 public:
  virtual ~Object() = default;
  void* impl;
};

template <typename Result, typename... Arguments>
Result call(void* object, int slot, Arguments... arguments) {
  void* impl = static_cast<Object*>(object)->impl;
  using Function = Result (*)(void*, Arguments...);
  return reinterpret_cast<Function>((*static_cast<void***>(impl))[slot])(impl, arguments...);
}

// The functions of the parser and of the plugin registry are their own.
template <typename Result, typename... Arguments>
Result call_interface(void* object, int slot, Arguments... arguments) {
  using Function = Result (*)(void*, Arguments...);
  return reinterpret_cast<Function>((*static_cast<void***>(object))[slot])(object, arguments...);
}

struct Libraries {
  void* infer = nullptr;
  void* parser = nullptr;
};
Libraries libraries;

BareLogger& logger() {
  static BareLogger logger;
  return logger;
}

DriverTensor from_dims(const Dims& dims) {
  DriverTensor tensor = {};
  tensor.rank = dims.nbDims;
  for (int32_t i = 0; i < dims.nbDims; ++i) tensor.dims[i] = dims.d[i];
  return tensor;
}

void* create(const char* function) {
  const auto make = reinterpret_cast<void* (*)(void*, int32_t)>(dlsym(libraries.infer, function));
  return make(&logger(), slots::kTensorRTVersion);
}

void destroy(void* object) { delete static_cast<Object*>(object); }

// For whoever watches ORTFLASH_DRIVER_LOG: each of these steps can take long.
void say(const char* step) { keep(abi::Severity::kINFO, step); }

void* make_builder() {
  say("driver: creating a builder");
  void* builder = create("createInferBuilder_INTERNAL");
  say("driver: the builder is there");
  return builder;
}

// What TensorRT measured in earlier builds of this process: layers that two engines share get the same kernels.
std::string& measured() {
  static std::string measured;
  return measured;
}

void* use_measured(void* config) {
  void* cache = call<void*>(config, slots::kConfigCreateTimingCache, static_cast<const void*>(measured().data()),
                            measured().size());
  call<bool>(config, slots::kConfigSetTimingCache, static_cast<const void*>(cache), false);
  return cache;
}

void keep_measured(void* config) {
  void* memory = call<void*>(call<void*>(config, slots::kConfigGetTimingCache), slots::kTimingCacheSerialize);
  measured().assign(call<const char*>(memory, slots::kMemoryData), call<size_t>(memory, slots::kMemorySize));
  destroy(memory);
}

}  // namespace

// 0, or -1 and the reason in driver_log(). `plugins` is loaded before the parser, which needs it.
DRIVER_EXPORT int32_t trt8_open(const char* infer, const char* plugins, const char* parser) {
  libraries.infer = dlopen(infer, RTLD_NOW | RTLD_GLOBAL);
  if (libraries.infer != nullptr && dlopen(plugins, RTLD_NOW | RTLD_GLOBAL) != nullptr) {
    libraries.parser = dlopen(parser, RTLD_NOW | RTLD_LOCAL);
  }
  if (libraries.parser != nullptr) return 0;
  log_text() += dlerror();
  return -1;
}

DRIVER_EXPORT int32_t trt8_version() {
  return reinterpret_cast<int32_t (*)()>(dlsym(libraries.infer, "getInferLibVersion"))();
}

DRIVER_EXPORT int32_t trt8_load_plugin(const char* path) {
  void* registry = reinterpret_cast<void* (*)()>(dlsym(libraries.infer, "getPluginRegistry"))();
  const int slot = trt8_version() == 8600 ? slots::kRegistryLoadLibraryOf860 : slots::kRegistryLoadLibraryOf861;
  return call_interface<void*>(registry, slot, path) == nullptr ? -1 : 0;
}

// What TensorRT has measured so far, to give to another process on the same kind of GPU.
DRIVER_EXPORT const void* trt8_measured_data() { return measured().data(); }
DRIVER_EXPORT size_t trt8_measured_bytes() { return measured().size(); }
DRIVER_EXPORT void trt8_set_measured(const char* data, size_t bytes) { measured().assign(data, bytes); }

// A serialized engine, or null and the reasons in the log. `least`, `typical` and `most` are the shapes of the inputs
// `names`; there may be none.
DRIVER_EXPORT void* trt8_build(const void* model, size_t model_bytes, const char* const* names,
                               const DriverTensor* least, const DriverTensor* typical, const DriverTensor* most,
                               int32_t count, int32_t fp16, int32_t optimization_level, size_t workspace_bytes) {
  static void* const builder = make_builder();  // takes seconds; the process keeps it
  if (builder == nullptr) return nullptr;
  void* network = call<void*>(builder, slots::kBuilderCreateNetwork, uint32_t{1} << slots::kExplicitBatch);
  const auto make_parser =
      reinterpret_cast<void* (*)(void*, void*, int)>(dlsym(libraries.parser, "createNvOnnxParser_INTERNAL"));
  void* parser = make_parser(network, &logger(), slots::kParserVersion);
  void* plan = nullptr;
  if (call_interface<bool>(parser, slots::kParserParse, model, model_bytes, static_cast<const char*>(nullptr))) {
    void* config = call<void*>(builder, slots::kBuilderCreateConfig);
    call<void>(config, slots::kConfigSetMemoryPoolLimit, int32_t{slots::kWorkspace}, workspace_bytes);
    call<bool>(config, slots::kConfigSetTacticSources, uint32_t{0});  // no cuDNN, no cuBLAS
    call<void>(config, slots::kConfigSetProfilingVerbosity, int32_t{slots::kDetailed});
    call<void>(config, slots::kConfigSetOptimizationLevel, optimization_level);
    if (fp16 != 0) call<void>(config, slots::kConfigSetFlag, int32_t{slots::kFp16});
    if (count > 0) {
      void* profile = call<void*>(builder, slots::kBuilderCreateProfile);
      for (int32_t i = 0; i < count; ++i) {
        const DriverTensor* const shapes[] = {&least[i], &typical[i], &most[i]};
        for (int32_t select = 0; select < 3; ++select) {
          call<bool>(profile, slots::kProfileSetDimensions, names[i], select, to_dims(*shapes[select]));
        }
      }
      call<int32_t>(config, slots::kConfigAddProfile, profile);
    }
    void* cache = use_measured(config);
    say("driver: building");
    plan = call<void*>(builder, slots::kBuilderBuild, network, config);
    say("driver: built");
    keep_measured(config);
    destroy(cache);
    destroy(config);
  }
  call_interface<void>(parser, slots::kParserDestroy);
  destroy(network);
  return plan;
}

DRIVER_EXPORT const void* trt8_plan_data(void* plan) { return call<const void*>(plan, slots::kMemoryData); }
DRIVER_EXPORT size_t trt8_plan_bytes(void* plan) { return call<size_t>(plan, slots::kMemorySize); }
DRIVER_EXPORT void trt8_destroy(void* object) { destroy(object); }

DRIVER_EXPORT void* trt8_runtime() { return create("createInferRuntime_INTERNAL"); }
DRIVER_EXPORT void* trt8_load(void* runtime, const void* plan, size_t bytes) {
  return call<void*>(runtime, slots::kRuntimeDeserialize, plan, bytes, static_cast<void*>(nullptr));
}

// The engine's layers as JSON.
DRIVER_EXPORT const char* trt8_layers(void* engine) {
  static std::string text;
  void* inspector = call<void*>(engine, slots::kEngineCreateInspector);
  text = call<const char*>(inspector, slots::kInspectorGetEngineInformation, int32_t{slots::kJson});
  destroy(inspector);
  return text.c_str();
}
DRIVER_EXPORT size_t trt8_device_bytes(void* engine) { return call<size_t>(engine, slots::kEngineDeviceMemory); }
DRIVER_EXPORT void* trt8_context(void* engine) { return call<void*>(engine, slots::kEngineCreateContext); }

// Inputs and outputs: how many, their names, and of each its type and shape, whether it is an input, whether it lies on
// the host, and for an input a shape of the first profile (0 the least, 1 the typical, 2 the largest).
DRIVER_EXPORT int32_t trt8_tensor_count(void* engine) { return call<int32_t>(engine, slots::kEngineGetNbIOTensors); }
DRIVER_EXPORT const char* trt8_tensor_name(void* engine, int32_t index) {
  return call<const char*>(engine, slots::kEngineGetIOTensorName, index);
}
DRIVER_EXPORT void trt8_tensor(void* engine, const char* name, DriverTensor* tensor) {
  *tensor = from_dims(call<Dims>(engine, slots::kEngineGetTensorShape, name));
  tensor->type = call<int32_t>(engine, slots::kEngineGetTensorDataType, name);
}
DRIVER_EXPORT int32_t trt8_is_input(void* engine, const char* name) {
  return call<int32_t>(engine, slots::kEngineGetTensorIOMode, name) == slots::kInput;
}
DRIVER_EXPORT int32_t trt8_is_on_host(void* engine, const char* name) {
  return call<bool>(engine, slots::kEngineIsShapeInferenceIO, name);
}
DRIVER_EXPORT void trt8_profile_shape(void* engine, const char* name, int32_t select, DriverTensor* shape) {
  *shape = from_dims(call<Dims>(engine, slots::kEngineGetProfileShape, name, int32_t{0}, select));
}

DRIVER_EXPORT int32_t trt8_set_shape(void* context, const char* name, const DriverTensor* shape) {
  const Dims dims = to_dims(*shape);
  return call<bool>(context, slots::kContextSetInputShape, name, &dims) ? 0 : -1;
}
DRIVER_EXPORT int32_t trt8_set_address(void* context, const char* name, void* data) {
  return call<bool>(context, slots::kContextSetTensorAddress, name, data) ? 0 : -1;
}
DRIVER_EXPORT void trt8_shape(void* context, const char* name, DriverTensor* shape) {
  *shape = from_dims(call<Dims>(context, slots::kContextGetTensorShape, name));
}
DRIVER_EXPORT int32_t trt8_enqueue(void* context, void* stream) {
  return call<bool>(context, slots::kContextEnqueue, stream) ? 0 : -1;
}

// TensorRT 8.6's part for an IPluginV2DynamicExt: create from fields, clone, ask for shapes, types, formats and
// workspace, serialise and deserialise, enqueue.
#include <vector>

#include "driver.h"
#include "trt8_slots.h"

namespace {

using namespace nvinfer1;

IPluginV2DynamicExt& plugin_of(void* plugin) { return *static_cast<IPluginV2DynamicExt*>(plugin); }

// TensorRT's own plugin registry, once driver_use_registry() was called.
void* registry = nullptr;

IPluginCreator& creator_of(void* library) {
  if (registry != nullptr) {
    using Find = IPluginCreator* (*)(void*, const char*, const char*, const char*);
    const auto find = reinterpret_cast<Find>((*static_cast<void***>(registry))[slots::kRegistryGetCreator]);
    return *find(registry, "FlashAttention", "1", "ortflash");
  }
  const auto get = reinterpret_cast<IPluginCreator* const* (*)(int32_t&)>(dlsym(library, "getPluginCreators"));
  int32_t count = 0;
  return *get(count)[0];
}

std::vector<PluginTensorDesc> to_descs(const DriverTensor* tensors, int32_t count) {
  std::vector<PluginTensorDesc> descs;
  for (int32_t i = 0; i < count; ++i) descs.push_back(to_desc(tensors[i]));
  return descs;
}

}  // namespace

// From now on the creator is asked of the registry in TensorRT 8.6.0's libnvinfer.so.8, which loads the plugin itself.
// Whether it did.
DRIVER_EXPORT int32_t driver_use_registry(const char* infer, const char* plugin) {
  void* handle = dlopen(infer, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return 0;
  registry = reinterpret_cast<void* (*)()>(dlsym(handle, "getPluginRegistry"))();
  using Load = void* (*)(void*, const char*);
  const auto load = reinterpret_cast<Load>((*static_cast<void***>(registry))[slots::kRegistryLoadLibraryOf860]);
  return load(registry, plugin) != nullptr ? 1 : 0;
}

// "name version namespace kind", then the fields' names.
DRIVER_EXPORT const char* driver_describe(void* library) {
  static std::string text;
  IPluginCreator& creator = creator_of(library);
  text = std::string(creator.getPluginName()) + "|" + creator.getPluginVersion() + "|" + creator.getPluginNamespace() +
         "|" + std::to_string(creator.getTensorRTVersion());
  const PluginFieldCollection* fields = creator.getFieldNames();
  for (int32_t i = 0; i < fields->nbFields; ++i) text += std::string("|") + fields->fields[i].name;
  return text.c_str();
}

DRIVER_EXPORT void* driver_create(void* library, const char* name, const DriverField* fields, int32_t count, int32_t) {
  std::vector<PluginField> made;
  for (int32_t i = 0; i < count; ++i) {
    made.push_back({fields[i].name, fields[i].data, static_cast<PluginFieldType>(fields[i].type), fields[i].length});
  }
  const PluginFieldCollection collection{count, made.data()};
  return static_cast<IPluginV2DynamicExt*>(creator_of(library).createPlugin(name, &collection));
}

DRIVER_EXPORT void driver_destroy(void* plugin) { plugin_of(plugin).destroy(); }
DRIVER_EXPORT void* driver_clone(void* plugin) { return plugin_of(plugin).clone(); }
DRIVER_EXPORT int32_t driver_output_count(void* plugin) { return plugin_of(plugin).getNbOutputs(); }

DRIVER_EXPORT size_t driver_stored_bytes(void* plugin) { return plugin_of(plugin).getSerializationSize(); }
DRIVER_EXPORT void driver_store(void* plugin, void* buffer) { plugin_of(plugin).serialize(buffer); }
DRIVER_EXPORT void* driver_restore(void* library, const char* name, const void* data, size_t bytes) {
  return static_cast<IPluginV2DynamicExt*>(creator_of(library).deserializePlugin(name, data, bytes));
}

DRIVER_EXPORT int32_t driver_output_types(void* plugin, const DriverTensor* inputs, int32_t input_count, int32_t* types,
                                          int32_t output_count) {
  std::vector<DataType> given;
  for (int32_t i = 0; i < input_count; ++i) given.push_back(static_cast<DataType>(inputs[i].type));
  for (int32_t i = 0; i < output_count; ++i) {
    types[i] = static_cast<int32_t>(plugin_of(plugin).getOutputDataType(i, given.data(), input_count));
  }
  return 0;
}

DRIVER_EXPORT int32_t driver_output_shapes(void* plugin, const DriverTensor* inputs, int32_t input_count,
                                           int32_t constant, DriverTensor* outputs, int32_t output_count) {
  Builder builder;
  std::vector<DimsExprs> given;
  for (int32_t i = 0; i < input_count; ++i) given.push_back(builder.shape(inputs[i], constant != 0));
  for (int32_t i = 0; i < output_count; ++i) {
    const DimsExprs made = plugin_of(plugin).getOutputDimensions(i, given.data(), input_count, builder);
    if (made.nbDims < 0) return -1;
    from_shape(made, &outputs[i]);
  }
  return 0;
}

// `format` is that of the tensor at `position`; all others are linear.
DRIVER_EXPORT int32_t driver_supports(void* plugin, int32_t position, const DriverTensor* tensors, int32_t input_count,
                                      int32_t output_count, int32_t format) {
  std::vector<PluginTensorDesc> descs = to_descs(tensors, input_count + output_count);
  descs[position].format = static_cast<TensorFormat>(format);
  return plugin_of(plugin).supportsFormatCombination(position, descs.data(), input_count, output_count) ? 1 : 0;
}

// 0, or what initialize() answers after a profile that configurePlugin() did not like.
DRIVER_EXPORT int32_t driver_configure(void* plugin, const DriverTensor* least, const DriverTensor* typical,
                                       const DriverTensor* most, int32_t input_count) {
  std::vector<DynamicPluginTensorDesc> descs;
  for (int32_t i = 0; i < input_count; ++i) {
    descs.push_back({to_desc(typical[i]), to_dims(least[i]), to_dims(most[i])});
  }
  plugin_of(plugin).configurePlugin(descs.data(), input_count, nullptr, 0);
  return plugin_of(plugin).initialize();
}

DRIVER_EXPORT size_t driver_workspace(void* plugin) {
  return plugin_of(plugin).getWorkspaceSize(nullptr, 0, nullptr, 0);
}

DRIVER_EXPORT int32_t driver_enqueue(void* plugin, const DriverTensor* inputs, int32_t input_count,
                                     const void* const* data, void* const* outputs, void* workspace, void* stream) {
  return plugin_of(plugin).enqueue(to_descs(inputs, input_count).data(), nullptr, data, outputs, workspace,
                                   static_cast<cudaStream_t>(stream));
}

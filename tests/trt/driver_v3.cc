// TensorRT 10's part for an IPluginV3: create from fields, clone, attach, ask for shapes, types, formats and workspace,
// serialise, enqueue.
#include <vector>

#include "driver.h"

namespace {

using namespace nvinfer1;

IPluginV3OneBuild& build_of(void* plugin) {
  IPluginCapability* capability = static_cast<IPluginV3*>(plugin)->getCapabilityInterface(PluginCapabilityType::kBUILD);
  return *static_cast<IPluginV3OneBuild*>(capability);
}

IPluginV3OneRuntime& runtime_of(void* plugin) {
  IPluginCapability* capability =
      static_cast<IPluginV3*>(plugin)->getCapabilityInterface(PluginCapabilityType::kRUNTIME);
  return *static_cast<IPluginV3OneRuntime*>(capability);
}

IPluginCreatorV3One& creator_of(void* library) {
  const auto get = reinterpret_cast<IPluginCreatorInterface* const* (*)(int32_t&)>(dlsym(library, "getCreators"));
  int32_t count = 0;
  return *static_cast<IPluginCreatorV3One*>(get(count)[0]);
}

std::vector<PluginTensorDesc> to_descs(const DriverTensor* tensors, int32_t count) {
  std::vector<PluginTensorDesc> descs;
  for (int32_t i = 0; i < count; ++i) descs.push_back(to_desc(tensors[i]));
  return descs;
}

std::vector<DynamicPluginTensorDesc> to_profile(const DriverTensor* least, const DriverTensor* typical,
                                                const DriverTensor* most, int32_t count) {
  std::vector<DynamicPluginTensorDesc> descs;
  for (int32_t i = 0; i < count; ++i) {
    descs.push_back({to_desc(typical[i]), to_dims(least[i]), to_dims(most[i]), to_dims(typical[i])});
  }
  return descs;
}

}  // namespace

// "name version namespace kind major.minor", then the fields' names.
DRIVER_EXPORT const char* driver_describe(void* library) {
  static std::string text;
  IPluginCreatorV3One& creator = creator_of(library);
  const InterfaceInfo info = creator.getInterfaceInfo();
  text = std::string(creator.getPluginName()) + "|" + creator.getPluginVersion() + "|" + creator.getPluginNamespace() +
         "|" + info.kind + " " + std::to_string(info.major) + "." + std::to_string(info.minor);
  const PluginFieldCollection* fields = creator.getFieldNames();
  for (int32_t i = 0; i < fields->nbFields; ++i) text += std::string("|") + fields->fields[i].name;
  return text.c_str();
}

DRIVER_EXPORT void* driver_create(void* library, const char* name, const DriverField* fields, int32_t count,
                                  int32_t from_engine) {
  std::vector<PluginField> made;
  for (int32_t i = 0; i < count; ++i) {
    made.push_back({fields[i].name, fields[i].data, static_cast<PluginFieldType>(fields[i].type), fields[i].length});
  }
  const PluginFieldCollection collection{count, made.data()};
  const TensorRTPhase phase = from_engine != 0 ? TensorRTPhase::kRUNTIME : TensorRTPhase::kBUILD;
  return creator_of(library).createPlugin(name, &collection, phase);
}

DRIVER_EXPORT void driver_destroy(void* plugin) { delete static_cast<IPluginV3*>(plugin); }
DRIVER_EXPORT void* driver_clone(void* plugin) { return static_cast<IPluginV3*>(plugin)->clone(); }
DRIVER_EXPORT void* driver_attach(void* plugin) { return runtime_of(plugin).attachToContext(nullptr); }
DRIVER_EXPORT const char* driver_metadata(void* plugin) { return build_of(plugin).getMetadataString(); }
DRIVER_EXPORT int32_t driver_output_count(void* plugin) { return build_of(plugin).getNbOutputs(); }

// What goes into an engine: a copy of every field, in the caller's array; their number, or -1 where it is too short.
// The data stays good until the plugin is asked again, or destroyed.
DRIVER_EXPORT int32_t driver_fields(void* plugin, DriverField* fields, int32_t capacity) {
  const PluginFieldCollection* collection = runtime_of(plugin).getFieldsToSerialize();
  if (collection->nbFields > capacity) return -1;
  for (int32_t i = 0; i < collection->nbFields; ++i) {
    const PluginField& field = collection->fields[i];
    fields[i] = {field.name, field.data, static_cast<int32_t>(field.type), field.length};
  }
  return collection->nbFields;
}

DRIVER_EXPORT int32_t driver_output_types(void* plugin, const DriverTensor* inputs, int32_t input_count, int32_t* types,
                                          int32_t output_count) {
  std::vector<DataType> given, made(output_count);
  for (int32_t i = 0; i < input_count; ++i) given.push_back(static_cast<DataType>(inputs[i].type));
  const int32_t result = build_of(plugin).getOutputDataTypes(made.data(), output_count, given.data(), input_count);
  for (int32_t i = 0; i < output_count; ++i) types[i] = static_cast<int32_t>(made[i]);
  return result;
}

DRIVER_EXPORT int32_t driver_output_shapes(void* plugin, const DriverTensor* inputs, int32_t input_count,
                                           int32_t constant, DriverTensor* outputs, int32_t output_count) {
  Builder builder;
  std::vector<DimsExprs> given, made(output_count);
  for (int32_t i = 0; i < input_count; ++i) given.push_back(builder.shape(inputs[i], constant != 0));
  const int32_t result =
      build_of(plugin).getOutputShapes(given.data(), input_count, nullptr, 0, made.data(), output_count, builder);
  for (int32_t i = 0; result == 0 && i < output_count; ++i) from_shape(made[i], &outputs[i]);
  return result;
}

// `format` is that of the tensor at `position`; all others are linear.
DRIVER_EXPORT int32_t driver_supports(void* plugin, int32_t position, const DriverTensor* tensors, int32_t input_count,
                                      int32_t output_count, int32_t format) {
  std::vector<DynamicPluginTensorDesc> descs = to_profile(tensors, tensors, tensors, input_count + output_count);
  descs[position].desc.format = static_cast<TensorFormat>(format);
  return build_of(plugin).supportsFormatCombination(position, descs.data(), input_count, output_count) ? 1 : 0;
}

DRIVER_EXPORT int32_t driver_configure(void* plugin, const DriverTensor* least, const DriverTensor* typical,
                                       const DriverTensor* most, int32_t input_count) {
  const std::vector<DynamicPluginTensorDesc> descs = to_profile(least, typical, most, input_count);
  return build_of(plugin).configurePlugin(descs.data(), input_count, nullptr, 0);
}

DRIVER_EXPORT size_t driver_workspace(void* plugin) {
  return build_of(plugin).getWorkspaceSize(nullptr, 0, nullptr, 0);
}

DRIVER_EXPORT int32_t driver_shape_change(void* plugin, const DriverTensor* inputs, int32_t input_count) {
  return runtime_of(plugin).onShapeChange(to_descs(inputs, input_count).data(), input_count, nullptr, 0);
}

DRIVER_EXPORT int32_t driver_enqueue(void* plugin, const DriverTensor* inputs, int32_t input_count,
                                     const void* const* data, void* const* outputs, void* workspace, void* stream) {
  return runtime_of(plugin).enqueue(to_descs(inputs, input_count).data(), nullptr, data, outputs, workspace,
                                    static_cast<cudaStream_t>(stream));
}

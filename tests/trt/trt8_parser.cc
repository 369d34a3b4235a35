// TensorRT 8.6's own ONNX parser on a machine without a GPU. Its builder wants one, so the parser gets a network of
// ours instead, which only remembers the plugins that are put into it: what a model of FlashAttention nodes (and casts
// of their masks) needs, and no more. See trt8.cc for how TensorRT's objects are laid out.
#include <array>
#include <memory>
#include <vector>

#include "driver.h"
#include "trt8_slots.h"

namespace {

using namespace nvinfer1;

// A table of virtual functions, all of which do nothing and return 0 or null until they are set.
class Table {
 public:
  Table() { slots_.fill(reinterpret_cast<void*>(&nothing)); }
  template <typename Function>
  void set(int slot, Function* function) {
    slots_[slot] = reinterpret_cast<void*>(function);
  }
  void** data() { return slots_.data(); }

 private:
  static void* nothing() { return nullptr; }
  std::array<void*, 128> slots_;
};

// One object of TensorRT's: its own table, and up to two implementations behind it. Here all are the same state.
struct State {
  void** table;
  std::string name;
  Dims dims;
  int32_t type;
  std::vector<struct Object*> outputs;
};
struct Object {
  void** table;
  State* first;
  State* second;
  State state;
};

struct Weights {
  int32_t type;
  const void* values;
  int64_t count;
};

struct Tables {
  Table object, network_object, network, builder, tensor, layer;
};
Tables& tables() {
  static Tables tables;
  return tables;
}

std::vector<std::unique_ptr<Object>> objects;
std::vector<std::string> stored;
void* registry = nullptr;

Object* make_object(void** object_table, void** state_table) {
  objects.push_back(std::make_unique<Object>());
  Object* object = objects.back().get();
  object->table = object_table;
  object->state.table = state_table;
  object->first = object->second = &object->state;
  return object;
}

Object* make_tensor(const char* name, int32_t type, const Dims& dims) {
  Object* tensor = make_object(tables().object.data(), tables().tensor.data());
  tensor->state.name = name;
  tensor->state.type = type;
  tensor->state.dims = dims;
  return tensor;
}

Object* make_layer(int32_t type, const Dims& dims, int32_t outputs = 1) {
  Object* layer = make_object(tables().object.data(), tables().layer.data());
  for (int32_t i = 0; i < outputs; ++i) layer->state.outputs.push_back(make_tensor("", type, dims));
  return layer;
}

Object* add_input(State*, const char* name, int32_t type, Dims dims) { return make_tensor(name, type, dims); }
Object* add_constant(State*, Dims dims, Weights weights) { return make_layer(weights.type, dims); }
Object* add_cast(State*, Object* input, int32_t type) { return make_layer(type, input->state.dims); }
Object* add_plugin(State*, Object* const* inputs, int32_t, IPluginV2* plugin) {
  std::string bytes(plugin->getSerializationSize(), '\0');
  plugin->serialize(bytes.data());
  stored.push_back(bytes);
  return make_layer(inputs[0]->state.type, inputs[0]->state.dims, plugin->getNbOutputs());
}
Object* get_builder(void*) { return make_object(tables().object.data(), tables().builder.data()); }
void* get_registry(State*) { return registry; }

void set_name(State* state, const char* name) { state->name = name; }
const char* get_name(State* state) { return state->name.c_str(); }
Dims get_dims(State* state) { return state->dims; }
void set_type(State* state, int32_t type) { state->type = type; }
int32_t get_type(State* state) { return state->type; }
int32_t count_outputs(State* state) { return static_cast<int32_t>(state->outputs.size()); }
Object* get_output(State* state, int32_t index) { return state->outputs[index]; }

void fill_tables() {
  Tables& t = tables();
  t.network_object.set(slots::kNetworkGetBuilder, get_builder);
  t.network.set(slots::kNetworkAddInput, add_input);
  t.network.set(slots::kNetworkAddConstant, add_constant);
  t.network.set(slots::kNetworkAddCast, add_cast);
  t.network.set(slots::kNetworkAddPlugin, add_plugin);
  t.builder.set(slots::kBuilderGetRegistry, get_registry);
  t.tensor.set(slots::kTensorSetName, set_name);
  t.tensor.set(slots::kTensorGetName, get_name);
  t.tensor.set(slots::kTensorGetDimensions, get_dims);
  t.tensor.set(slots::kTensorSetType, set_type);
  t.tensor.set(slots::kTensorGetType, get_type);
  t.layer.set(slots::kLayerSetName, set_name);
  t.layer.set(slots::kLayerGetName, get_name);
  t.layer.set(slots::kLayerGetNbOutputs, count_outputs);
  t.layer.set(slots::kLayerGetOutput, get_output);
}

void* load(const char* path, int flags) {
  void* handle = dlopen(path, RTLD_NOW | flags);
  if (handle == nullptr) log_text() += dlerror();
  return handle;
}

}  // namespace

// Parses a model with the plugin library loaded; how many plugins the network holds, or -1 and the reasons in the log.
DRIVER_EXPORT int32_t parser_parse(const char* infer, const char* standin, const char* parser, const char* plugin,
                                   const void* model, size_t model_bytes) {
  static BareLogger logger;
  void* infer_library = load(infer, RTLD_GLOBAL);
  if (infer_library == nullptr || load(standin, RTLD_GLOBAL) == nullptr) return -1;
  void* parser_library = load(parser, RTLD_LOCAL);
  if (parser_library == nullptr) return -1;
  if (registry == nullptr) {
    registry = reinterpret_cast<void* (*)()>(dlsym(infer_library, "getPluginRegistry"))();
    using Load = void* (*)(void*, const char*);
    reinterpret_cast<Load>((*static_cast<void***>(registry))[slots::kRegistryLoadLibraryOf860])(registry, plugin);
    fill_tables();
  }
  stored.clear();
  Object* network = make_object(tables().network_object.data(), tables().network.data());
  using Create = void* (*)(void*, void*, int);
  void* made = reinterpret_cast<Create>(dlsym(parser_library, "createNvOnnxParser_INTERNAL"))(network, &logger,
                                                                                              slots::kParserVersion);
  using Parse = bool (*)(void*, const void*, size_t, const char*);
  const auto parse = reinterpret_cast<Parse>((*static_cast<void***>(made))[slots::kParserParse]);
  const bool parsed = parse(made, model, model_bytes, nullptr);
  reinterpret_cast<void (*)(void*)>((*static_cast<void***>(made))[slots::kParserDestroy])(made);
  objects.clear();
  return parsed ? static_cast<int32_t>(stored.size()) : -1;
}

// What a plugin of the network stores in an engine.
DRIVER_EXPORT const char* parser_stored(int32_t index) { return stored[index].data(); }
DRIVER_EXPORT size_t parser_stored_bytes(int32_t index) { return stored[index].size(); }

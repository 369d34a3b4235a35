// libortflash_trt8.so: what TensorRT 8.6's plugin registry finds in it.
#include <new>

#include "core/status.h"
#include "tensorrt/fields.h"
#include "tensorrt/log.h"
#include "tensorrt/plugin_v2.h"

namespace ortflash::trt {
namespace {

class CreatorV2 final : public nvinfer1::IPluginCreator {
 public:
  const char* getPluginName() const noexcept override { return schema::kOpName; }
  const char* getPluginVersion() const noexcept override { return schema::kPluginVersion.default_value; }
  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return field_names(); }
  void setPluginNamespace(const char*) noexcept override {}  // there is only the one of the schema
  const char* getPluginNamespace() const noexcept override { return schema::kPluginNamespace.default_value; }

  nvinfer1::IPluginV2* createPlugin(const char* name,
                                    const nvinfer1::PluginFieldCollection* collection) noexcept override {
    FieldList fields;
    NodeState state;
    Status status = read_fields(*collection, &fields);
    if (status.ok()) status = read_state(fields, /*complete=*/false, &state);
    nvinfer1::IPluginV2* plugin = nullptr;
    if (status.ok()) {
      plugin = new (std::nothrow) PluginV2(Node(name, state));
      if (plugin == nullptr) status = make_status(StatusCode::kUnsupported, "out of memory");
    }
    if (!status.ok()) log_error(name, status);
    return plugin;
  }

  nvinfer1::IPluginV2* deserializePlugin(const char* name, const void* data, size_t bytes) noexcept override {
    Status status;
    PluginV2* plugin = restore_plugin(name, data, bytes, &status);
    if (!status.ok()) log_error(name, status);
    return plugin;
  }
};

}  // namespace
}  // namespace ortflash::trt

extern "C" {

__attribute__((visibility("default"))) nvinfer1::IPluginCreator* const* getPluginCreators(int32_t& count) {
  static ortflash::trt::CreatorV2 creator;
  static nvinfer1::IPluginCreator* const creators[] = {&creator};
  count = 1;
  return creators;
}

__attribute__((visibility("default"))) void setLoggerFinder(void* finder) { ortflash::trt::set_logger_finder(finder); }
}

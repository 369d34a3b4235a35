// libortflash_trt.so: what TensorRT's plugin registry finds in it. TensorRT 10 and newer, TensorRT-RTX.
#include <new>

#include "core/status.h"
#include "tensorrt/fields.h"
#include "tensorrt/log.h"
#include "tensorrt/plugin_v3.h"

namespace ortflash::trt {
namespace {

class CreatorV3 final : public nvinfer1::IPluginCreatorV3One {
 public:
  const char* getPluginName() const noexcept override { return schema::kOpName; }
  const char* getPluginVersion() const noexcept override { return schema::kPluginVersion.default_value; }
  const char* getPluginNamespace() const noexcept override { return schema::kPluginNamespace.default_value; }
  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return field_names(); }

  nvinfer1::IPluginV3* createPlugin(const char* name, const nvinfer1::PluginFieldCollection* collection,
                                    nvinfer1::TensorRTPhase phase) noexcept override {
    FieldList fields;
    NodeState state;
    Status status = read_fields(*collection, &fields);
    if (status.ok()) status = read_state(fields, phase == nvinfer1::TensorRTPhase::kRUNTIME, &state);
    nvinfer1::IPluginV3* plugin = nullptr;
    if (status.ok()) {
      plugin = new (std::nothrow) PluginV3(Node(name, state));
      if (plugin == nullptr) status = make_status(StatusCode::kUnsupported, "out of memory");
    }
    if (!status.ok()) log_error(name, status);
    return plugin;
  }
};

}  // namespace
}  // namespace ortflash::trt

extern "C" {

__attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
  static ortflash::trt::CreatorV3 creator;
  static nvinfer1::IPluginCreatorInterface* const creators[] = {&creator};
  count = 1;
  return creators;
}

__attribute__((visibility("default"))) void setLoggerFinder(void* finder) { ortflash::trt::set_logger_finder(finder); }
}

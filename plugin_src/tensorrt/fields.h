// A node's values as TensorRT's PluginFields: in from its parser, and out to and in from an engine (IPluginV3).
#pragma once

#include "tensorrt/nvinfer.h"
#include "tensorrt/state.h"

namespace ortflash::trt {

// The names that TensorRT's parser hands over where a node has them; all others stay in the model.
const nvinfer1::PluginFieldCollection* field_names();

// The message of a failure names the field.
Status read_fields(const nvinfer1::PluginFieldCollection& collection, FieldList* fields);

#if ORTFLASH_TENSORRT_MAJOR >= 10
// A list as PluginFields that point into it.
class StoredFields {
 public:
  StoredFields() = default;
  StoredFields(const StoredFields&) = delete;
  StoredFields& operator=(const StoredFields&) = delete;

  // What comes back is good until the next call, or the end of this object.
  const nvinfer1::PluginFieldCollection* store(const FieldList& fields);

 private:
  FieldList list_;
  nvinfer1::PluginField fields_[FieldList::kCapacity];
  nvinfer1::PluginFieldCollection collection_ = {};
};
#endif

}  // namespace ortflash::trt

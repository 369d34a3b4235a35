#include "tensorrt/fields.h"

#include <cstring>

#include "core/status.h"

namespace ortflash::trt {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;
using schema::AttributeType;

#if ORTFLASH_TENSORRT_MAJOR >= 10
constexpr PluginFieldType kInt64 = PluginFieldType::kINT64;
#else
constexpr PluginFieldType kInt64 = static_cast<PluginFieldType>(10);  // since TensorRT 10
#endif

PluginFieldType field_type(AttributeType type) {
  switch (type) {
    case AttributeType::kInt:
      return kInt64;
    case AttributeType::kFloat:
      return PluginFieldType::kFLOAT32;
    case AttributeType::kString:
      return PluginFieldType::kCHAR;
  }
  return PluginFieldType::kUNKNOWN;
}

template <typename Value>
Value load(const void* data) {  // TensorRT says nothing of alignment
  Value value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

Status read_field(const PluginField& field, FieldList* fields) {
  if (field.name == nullptr) return make_status(StatusCode::kInvalidArgument, "an attribute has no name");
  if (field.data == nullptr || field.length < 1) {
    return make_status(StatusCode::kInvalidArgument, "attribute '%s' has no value", field.name);
  }
  if (field.type == PluginFieldType::kCHAR) {
    return fields->add_string(field.name, static_cast<const char*>(field.data), static_cast<size_t>(field.length));
  }
  if (field.length != 1) {
    return make_status(StatusCode::kInvalidArgument, "attribute '%s' has %d values but must have one", field.name,
                       field.length);
  }
  // Parsers up to 10.1 at least hand integers over in 32 bits, newer ones in 64.
  if (field.type == kInt64) return fields->add_int(field.name, load<int64_t>(field.data));
  if (field.type == PluginFieldType::kINT32) return fields->add_int(field.name, load<int32_t>(field.data));
  if (field.type == PluginFieldType::kFLOAT32) return fields->add_float(field.name, load<float>(field.data));
  if (field.type == PluginFieldType::kFLOAT64) {  // what TensorRT's Python makes of a float
    return fields->add_float(field.name, static_cast<float>(load<double>(field.data)));
  }
  return make_status(StatusCode::kInvalidArgument, "attribute '%s' must be an int, a float or a string", field.name);
}

}  // namespace

const PluginFieldCollection* field_names() {
  struct Names {
    PluginField fields[FieldList::kCapacity - 1];
    PluginFieldCollection collection;
    Names() {
      int32_t count = 0;
      for (const schema::AttributeName& attribute : schema::kAttributes) {
        fields[count++] = PluginField{attribute.name, nullptr, field_type(attribute.type), 1};
      }
      fields[count++] = PluginField{kNeutralInputs, nullptr, kInt64, 1};
      collection = {count, fields};
    }
  };
  static const Names names;
  return &names.collection;
}

Status read_fields(const PluginFieldCollection& collection, FieldList* fields) {
  *fields = {};
  Status status;
  for (int32_t i = 0; status.ok() && i < collection.nbFields; ++i) {
    status = read_field(collection.fields[i], fields);
  }
  return status;
}

#if ORTFLASH_TENSORRT_MAJOR >= 10
const PluginFieldCollection* StoredFields::store(const FieldList& fields) {
  list_ = fields;
  for (size_t i = 0; i < list_.count(); ++i) {
    const Field& field = list_[i];
    const void* data = &field.integer;
    int32_t length = 1;
    const AttributeType type = static_cast<AttributeType>(field.type);
    if (type == AttributeType::kFloat) data = &field.number;
    if (type == AttributeType::kString) {
      data = field.text;
      length = static_cast<int32_t>(std::strlen(field.text) + 1);
    }
    fields_[i] = PluginField{field.name, data, field_type(type), length};
  }
  collection_ = {static_cast<int32_t>(list_.count()), fields_};
  return &collection_;
}
#endif

}  // namespace ortflash::trt

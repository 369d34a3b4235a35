#include "tensorrt/state.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/status.h"

namespace ortflash::trt {
namespace {

using schema::AttributeType;

// The type of what may stand under `name`; false where nothing may.
bool find_type(const char* name, AttributeType* type) {
  for (const schema::AttributeName& attribute : schema::kAttributes) {
    if (std::strcmp(attribute.name, name) != 0) continue;
    *type = attribute.type;
    return true;
  }
  *type = AttributeType::kInt;
  return std::strcmp(name, kNeutralInputs) == 0 || std::strcmp(name, kWorkspaceBytes) == 0;
}

}  // namespace

Status FieldList::make(const char* name, AttributeType type, Field** field) {
  AttributeType known;
  if (!find_type(name, &known)) {
    return make_status(StatusCode::kInvalidArgument, "there is no attribute '%s'", name);
  }
  if (find(name) != nullptr) {
    return make_status(StatusCode::kInvalidArgument, "attribute '%s' is there twice", name);
  }
  *field = &fields_[count_++];
  std::snprintf((*field)->name, sizeof((*field)->name), "%s", name);
  (*field)->type = static_cast<int32_t>(type);
  return {};
}

Status FieldList::add_int(const char* name, int64_t value) {
  Field* field = nullptr;
  const Status status = make(name, AttributeType::kInt, &field);
  if (status.ok()) field->integer = value;
  return status;
}

Status FieldList::add_float(const char* name, float value) {
  Field* field = nullptr;
  const Status status = make(name, AttributeType::kFloat, &field);
  if (status.ok()) field->number = value;
  return status;
}

Status FieldList::add_string(const char* name, const char* text, size_t length) {
  length = strnlen(text, length);
  Field* field = nullptr;
  const Status status = make(name, AttributeType::kString, &field);
  if (!status.ok()) return status;
  if (length >= sizeof(field->text)) {
    return make_status(StatusCode::kInvalidArgument, "attribute '%s' has %zu characters, more than the %zu that fit",
                       name, length, sizeof(field->text) - 1);
  }
  std::memcpy(field->text, text, length);
  return status;
}

Status FieldList::add(const Field& stored) {
  char name[sizeof(stored.name)];
  std::snprintf(name, sizeof(name), "%.*s", static_cast<int>(sizeof(name) - 1), stored.name);
  switch (static_cast<AttributeType>(stored.type)) {
    case AttributeType::kInt:
      return add_int(name, stored.integer);
    case AttributeType::kFloat:
      return add_float(name, stored.number);
    case AttributeType::kString:
      return add_string(name, stored.text, sizeof(stored.text));
  }
  return make_status(StatusCode::kInvalidArgument, "attribute '%s' was stored with an unknown type", name);
}

const Field* FieldList::find(const char* name) const {
  for (size_t i = 0; i < count_; ++i) {
    if (std::strcmp(fields_[i].name, name) == 0) return &fields_[i];
  }
  return nullptr;
}

Found FieldList::read_int(const char* name, int64_t* value) const {
  const Field* field = find(name);
  if (field == nullptr) return Found::kAbsent;
  if (field->type != static_cast<int32_t>(AttributeType::kInt)) return Found::kOtherType;
  *value = field->integer;
  return Found::kYes;
}

Found FieldList::read_float(const char* name, float* value) const {
  const Field* field = find(name);
  if (field == nullptr) return Found::kAbsent;
  if (field->type != static_cast<int32_t>(AttributeType::kFloat)) return Found::kOtherType;
  *value = field->number;
  return Found::kYes;
}

Found FieldList::read_string(const char* name, char* value, size_t capacity) const {
  const Field* field = find(name);
  if (field == nullptr) return Found::kAbsent;
  if (field->type != static_cast<int32_t>(AttributeType::kString)) return Found::kOtherType;
  std::snprintf(value, capacity, "%s", field->text);
  return Found::kYes;
}

FieldList list_fields(const NodeState& state) {
  static_assert(sizeof(schema::kAttributes) / sizeof(schema::kAttributes[0]) == 14,
                "a new attribute of the schema has to be listed here");
  const Attributes& a = state.attributes;
  const size_t alignment = a.causal_alignment == CausalAlignment::kTopLeft ? 0 : 1;
  FieldList list;
  const auto text = [&list](const schema::StringAttribute& attribute, const char* value) {
    list.add_string(attribute.name, value, std::strlen(value));
  };
  list.add_int(schema::kNumHeads.name, a.num_heads);
  list.add_int(schema::kKvNumHeads.name, a.kv_num_heads);
  list.add_float(schema::kScale.name, a.scale);
  list.add_int(schema::kIsCausal.name, a.is_causal);
  text(schema::kCausalAlignment, schema::kCausalAlignment.choices[alignment]);
  list.add_int(schema::kWindowLeft.name, a.window_left);
  list.add_int(schema::kWindowRight.name, a.window_right);
  list.add_float(schema::kSoftcap.name, a.softcap);
  list.add_float(schema::kMaskFill.name, a.mask_fill);
  list.add_int(schema::kBlockSize.name, a.block_size);
  list.add_float(schema::kDropoutP.name, a.dropout_p);
  list.add_int(schema::kReturnLse.name, a.return_lse);
  text(schema::kPluginVersion, schema::kPluginVersion.default_value);
  text(schema::kPluginNamespace, schema::kPluginNamespace.default_value);
  list.add_int(kNeutralInputs, state.neutral_inputs);
  list.add_int(kWorkspaceBytes, state.workspace_bytes);
  return list;
}

Status read_state(const FieldList& fields, bool complete, NodeState* state) {
  *state = {};
  if (complete) {
    for (const schema::AttributeName& attribute : schema::kAttributes) {
      if (fields.find(attribute.name) != nullptr) continue;
      return make_status(StatusCode::kInvalidArgument, "the engine has no attribute '%s': it was not built by ortflash",
                         attribute.name);
    }
  }
  Status status = read_attributes(fields, &state->attributes);
  if (!status.ok()) return status;
  if (state->attributes.dropout_p > 0) {
    return make_status(StatusCode::kUnsupported,
                       "attribute '%s' is %g, and TensorRT computes no dropout: export the model for inference",
                       schema::kDropoutP.name, static_cast<double>(state->attributes.dropout_p));
  }
  for (const auto& [name, value] :
       {std::pair{kNeutralInputs, &state->neutral_inputs}, std::pair{kWorkspaceBytes, &state->workspace_bytes}}) {
    if (fields.read_int(name, value) == Found::kOtherType) {
      return make_status(StatusCode::kInvalidArgument, "attribute '%s' must be of type int", name);
    }
  }
  // The required inputs are always read.
  constexpr int64_t kRequired = 1 << schema::kInputQuery | 1 << schema::kInputKey | 1 << schema::kInputValue;
  if (state->neutral_inputs < 0 || state->neutral_inputs >= 1 << schema::kInputCount ||
      (state->neutral_inputs & kRequired) != 0) {
    return make_status(StatusCode::kInvalidArgument,
                       "attribute '%s' is %" PRId64 ", which names inputs that can't be left out", kNeutralInputs,
                       state->neutral_inputs);
  }
  return {};
}

void describe_state(const NodeState& state, char* text, size_t capacity) {
  const FieldList list = list_fields(state);
  size_t used = 0;
  for (size_t i = 0; i < list.count() && used < capacity; ++i) {
    const Field& field = list[i];
    const char* space = i == 0 ? "" : " ";
    char* end = text + used;
    const size_t left = capacity - used;
    switch (static_cast<AttributeType>(field.type)) {
      case AttributeType::kInt:
        used += std::snprintf(end, left, "%s%s=%" PRId64, space, field.name, field.integer);
        break;
      case AttributeType::kFloat:
        used += std::snprintf(end, left, "%s%s=%.9g", space, field.name, double{field.number});
        break;
      case AttributeType::kString:
        used += std::snprintf(end, left, "%s%s=%s", space, field.name, field.text);
        break;
    }
  }
}

}  // namespace ortflash::trt

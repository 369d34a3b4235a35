#include "adapter/attributes.h"

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/status.h"
#include "flash_attention_schema.h"

namespace ortflash {
namespace {

Status wrong_type(const char* name, const char* type) {
  return make_status(StatusCode::kInvalidArgument, "attribute '%s' must be of type %s", name, type);
}

// "16, 32, 64" of the schema's choices; cut where `capacity` ends.
template <typename Choice>
void join(const Choice* choices, size_t count, const char* format, char* text, size_t capacity) {
  size_t used = 0;
  text[0] = '\0';
  for (size_t i = 0; i < count && used < capacity; ++i) {
    used += std::snprintf(text + used, capacity - used, i == 0 ? "" : ", ");
    if (used < capacity) used += std::snprintf(text + used, capacity - used, format, choices[i]);
  }
}

Status read(const AttributeSource& source, const schema::IntAttribute& spec, int64_t* value) {
  *value = spec.default_value;
  if (source.read_int(spec.name, value) == Found::kOtherType) return wrong_type(spec.name, "int");
  if (*value < spec.minimum || *value > spec.maximum) {
    return make_status(StatusCode::kInvalidArgument, "attribute '%s' is %" PRId64 " but must be at least %" PRId64,
                       spec.name, *value, spec.minimum);
  }
  bool allowed = spec.choice_count == 0;
  for (size_t i = 0; i < spec.choice_count; ++i) allowed |= spec.choices[i] == *value;
  if (!allowed) {
    char choices[128];
    join(spec.choices, spec.choice_count, "%" PRId64, choices, sizeof(choices));
    return make_status(StatusCode::kInvalidArgument, "attribute '%s' is %" PRId64 " but must be one of %s", spec.name,
                       *value, choices);
  }
  return {};
}

Status read(const AttributeSource& source, const schema::FloatAttribute& spec, float* value) {
  *value = spec.default_value;
  if (source.read_float(spec.name, value) == Found::kOtherType) return wrong_type(spec.name, "float");
  if (std::isnan(*value) || *value < spec.minimum || *value > spec.maximum) {
    return make_status(StatusCode::kInvalidArgument, "attribute '%s' is %g but must be in [%g, %g]", spec.name,
                       double{*value}, double{spec.minimum}, double{spec.maximum});
  }
  return {};
}

// `index` is the place of the value in the schema's choices; 0 where it has none.
Status read(const AttributeSource& source, const schema::StringAttribute& spec, size_t* index) {
  char value[64];
  std::snprintf(value, sizeof(value), "%s", spec.default_value);
  if (source.read_string(spec.name, value, sizeof(value)) == Found::kOtherType) return wrong_type(spec.name, "string");
  *index = 0;
  for (size_t i = 0; i < spec.choice_count; ++i) {
    if (std::strcmp(spec.choices[i], value) == 0) {
      *index = i;
      return {};
    }
  }
  if (spec.choice_count == 0) return {};
  char choices[128];
  join(spec.choices, spec.choice_count, "%s", choices, sizeof(choices));
  return make_status(StatusCode::kInvalidArgument, "attribute '%s' is '%s' but must be one of %s", spec.name, value,
                     choices);
}

Status read(const AttributeSource& source, const schema::IntAttribute& spec, bool* value) {
  int64_t number = 0;
  const Status status = read(source, spec, &number);
  *value = number != 0;
  return status;
}

}  // namespace

Status read_attribute(const AttributeSource& source, const schema::IntAttribute& spec, int64_t* value) {
  return read(source, spec, value);
}

Status read_attributes(const AttributeSource& source, Attributes* attributes) {
  static_assert(sizeof(schema::kAttributes) / sizeof(schema::kAttributes[0]) == 14,
                "a new attribute of the schema has to be read here");
  size_t alignment = 0, version = 0, plugin_namespace = 0;
  Status status;
  const auto take = [&](const auto& spec, auto* value) {
    if (status.ok()) status = read(source, spec, value);
  };
  take(schema::kNumHeads, &attributes->num_heads);
  take(schema::kKvNumHeads, &attributes->kv_num_heads);
  take(schema::kScale, &attributes->scale);
  take(schema::kIsCausal, &attributes->is_causal);
  take(schema::kCausalAlignment, &alignment);
  take(schema::kWindowLeft, &attributes->window_left);
  take(schema::kWindowRight, &attributes->window_right);
  take(schema::kSoftcap, &attributes->softcap);
  take(schema::kMaskFill, &attributes->mask_fill);
  take(schema::kBlockSize, &attributes->block_size);
  take(schema::kDropoutP, &attributes->dropout_p);
  take(schema::kReturnLse, &attributes->return_lse);
  take(schema::kPluginVersion, &version);
  take(schema::kPluginNamespace, &plugin_namespace);
  attributes->causal_alignment = alignment == 0 ? CausalAlignment::kTopLeft : CausalAlignment::kBottomRight;
  return status;
}

}  // namespace ortflash

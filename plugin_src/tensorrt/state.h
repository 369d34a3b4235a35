// What a plugin is made of, and the same as a list of named values: in from TensorRT's parser, out into an engine, and
// in again from there. Knows no TensorRT.
#pragma once

#include <cstddef>
#include <cstdint>

#include "adapter/attributes.h"
#include "flash_attention_schema.h"

namespace ortflash::trt {

struct NodeState {
  Attributes attributes = {};

  // Bit i: input i is there only because other nodes of the file have it; its constant says "none" (0, True, ...).
  // TensorRT shows a plugin no constants, so `ortflash build` writes this down as an attribute of its own. Without it
  // such an input is read like any other: the same numbers, by a slower kernel.
  int64_t neutral_inputs = 0;

  // The workspace that TensorRT was asked for when the engine was built; -1 = not known.
  int64_t workspace_bytes = -1;
};

// The two values that the schema does not have.
inline constexpr char kNeutralInputs[] = "neutral_inputs";
inline constexpr char kWorkspaceBytes[] = "workspace_bytes";

// One named value. A plain block of bytes, zero where unused, so that a list of them can be stored as it is.
struct Field {
  char name[32];
  int32_t type;  // of schema::AttributeType
  float number;
  int64_t integer;
  char text[64];
};

class FieldList final : public AttributeSource {
 public:
  static constexpr size_t kCapacity = sizeof(schema::kAttributes) / sizeof(schema::kAttributes[0]) + 2;

  // Each refuses a name that is no attribute, or that is there already.
  Status add_int(const char* name, int64_t value);
  Status add_float(const char* name, float value);
  // The first `length` characters of `text`, or those before a zero; a longer one than fits is refused.
  Status add_string(const char* name, const char* text, size_t length);
  // One that was stored; nothing of it is taken for granted.
  Status add(const Field& stored);

  size_t count() const { return count_; }
  const Field& operator[](size_t i) const { return fields_[i]; }
  const Field* find(const char* name) const;

  Found read_int(const char* name, int64_t* value) const override;
  Found read_float(const char* name, float* value) const override;
  Found read_string(const char* name, char* value, size_t capacity) const override;

 private:
  Status make(const char* name, schema::AttributeType type, Field** field);

  Field fields_[kCapacity] = {};
  size_t count_ = 0;
};

// Every value of `state`, defaults included.
FieldList list_fields(const NodeState& state);

// `complete`: the list comes out of an engine, where every attribute must be; in a model, absent ones get defaults.
Status read_state(const FieldList& fields, bool complete, NodeState* state);

// "num_heads=4 scale=0.125 ...": the same text for the same state. Cut where `capacity` ends.
void describe_state(const NodeState& state, char* text, size_t capacity);

}  // namespace ortflash::trt

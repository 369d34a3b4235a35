// The node's attributes, read and checked against the schema; shared by every adapter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/attention.h"
#include "flash_attention_schema.h"

namespace ortflash {

// Values of one FlashAttention node. Defaults and meaning: flash_attention.toml.
struct Attributes {
  int64_t num_heads;
  int64_t kv_num_heads;
  float scale;
  bool is_causal;
  CausalAlignment causal_alignment;
  int64_t window_left;
  int64_t window_right;
  float softcap;
  float mask_fill;
  int64_t block_size;
  float dropout_p;
  bool return_lse;
};

enum class Found : uint8_t { kYes, kAbsent, kOtherType };

// Where a framework keeps a node's attributes. Each call leaves `value` alone unless it returns kYes.
class AttributeSource {
 public:
  virtual Found read_int(const char* name, int64_t* value) const = 0;
  virtual Found read_float(const char* name, float* value) const = 0;
  // Writes at most `capacity` bytes, zero-terminated; a longer string is cut.
  virtual Found read_string(const char* name, char* value, size_t capacity) const = 0;

 protected:
  ~AttributeSource() = default;
};

// Reads every attribute of the schema; an absent one gets its default. The message of a failure names the attribute,
// its value and what is allowed.
Status read_attributes(const AttributeSource& source, Attributes* attributes);

// One integer attribute, likewise.
Status read_attribute(const AttributeSource& source, const schema::IntAttribute& spec, int64_t* value);

}  // namespace ortflash

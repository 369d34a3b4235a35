// From a node's tensors to the core's parameters: layouts, broadcasting, and every check of shapes and types. Shared by
// the adapters, knows no framework.
#pragma once

#include <cstddef>
#include <cstdint>

#include "adapter/attributes.h"
#include "core/attention.h"
#include "flash_attention_schema.h"

namespace ortflash {

// A contiguous tensor of the framework's. `present` is false for an optional input that the node does not have.
struct Tensor {
  bool present = false;
  const void* data = nullptr;
  schema::Type type = schema::kTypeFloat32;
  const int64_t* shape = nullptr;
  size_t rank = 0;
};

// One call, ready but for the outputs' pointers.
struct Call {
  AttentionParams params;
  int64_t output_shape[4] = {0};  // (B,N,S,E) or (B,S,N*E)
  size_t output_rank = 0;
  int64_t lse_shape[3] = {0};  // (B,N,S)
};

// Checks `inputs`, in the schema's order, against each other and `attributes`, and fills `call`. Reads no element. The
// message of a failure names the input, its shape, and the shape or attribute that it does not fit.
Status make_call(const Attributes& attributes, const Tensor (&inputs)[schema::kInputCount], Call* call);

// Whether the one element of this optional input says that there is no such input (0, True, -inf, 2147483647).
// `element` is in host memory.
bool is_neutral(schema::InputIndex input, schema::Type type, const void* element);

}  // namespace ortflash

// Shapes and types as messages have them.
#pragma once

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "flash_attention_schema.h"

namespace ortflash {

// "(2,4,13,32)", "(6,)"
struct ShapeText {
  char text[128];
  ShapeText(const int64_t* shape, size_t rank) {
    size_t used = 1;
    std::snprintf(text, sizeof(text), "(");
    for (size_t i = 0; i < rank && used < sizeof(text); ++i) {
      used += std::snprintf(text + used, sizeof(text) - used, i == 0 ? "%" PRId64 : ",%" PRId64, shape[i]);
    }
    if (used < sizeof(text)) std::snprintf(text + used, sizeof(text) - used, rank == 1 ? ",)" : ")");
  }
};

inline const char* type_name(schema::Type type) {
  switch (type) {
    case schema::kTypeQuery:
      return "the query's type";
    case schema::kTypeFloat32:
      return "float32";
    case schema::kTypeFloat16:
      return "float16";
    case schema::kTypeBFloat16:
      return "bfloat16";
    case schema::kTypeBool:
      return "bool";
    case schema::kTypeInt32:
      return "int32";
    case schema::kTypeInt64:
      return "int64";
  }
  return "an unknown type";
}

}  // namespace ortflash

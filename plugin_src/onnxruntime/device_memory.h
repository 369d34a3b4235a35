// Reading one element of a constant that may lie on a GPU.
#pragma once

#include <cstddef>

#include "core/attention.h"
#include "flash_attention_schema.h"

namespace ortflash::ort {

// Bytes of one element; 0 for what the schema has no input of.
size_t element_size(schema::Type type);

// Copies `bytes` from host or device memory, and waits for it. Called while a session is made, never while it runs.
Status copy_to_host(const void* source, size_t bytes, void* target);

}  // namespace ortflash::ort

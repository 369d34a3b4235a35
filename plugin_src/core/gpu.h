// The current GPU, and CUDA's errors as a Status. Asks the runtime once a device; nothing here needs a GPU to load.
#pragma once

#include <cuda_runtime_api.h>

#include "attention.h"

namespace ortflash {

struct Gpu {
  int device;        // ordinal
  int major, minor;  // compute capability
  int multiprocessors;
  int shared_bytes;  // the most shared memory of a thread block, by opt-in
  int64_t l2_bytes;
  char name[64];
};

// The current device's description, kept for the life of the process.
Status current_gpu(const Gpu** gpu);

// "what: CUDA's own text (its name)".
Status cuda_status(cudaError_t error, const char* what);

}  // namespace ortflash

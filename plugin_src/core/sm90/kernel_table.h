// The compiled kernels, as the host chooses among them.
#pragma once

#include <cstddef>

#include "../attention.h"

namespace ortflash::sm90 {

// What a kernel is for; bits of Kernel::uses.
enum Use : unsigned {
  kFull = 1,    // every row sees all keys, but for key_lengths
  kBanded = 2,  // causal or a window
  kTerms = 4,   // any of softcap, attn_bias, attn_mask and block_mask
};

struct Kernel {
  const char* name;
  DType dtype;
  unsigned uses;
  int head;  // D and E fit into this
  int block_q, block_kv;
  int threads;
  int shared_bytes;
  const void* function;  // attention_forward<Tile>(ForwardMaps, ForwardParams)
};

struct KernelList {
  const Kernel* first;
  size_t count;
};

KernelList float16_kernels();   // forward_float16.cu
KernelList bfloat16_kernels();  // forward_bfloat16.cu

}  // namespace ortflash::sm90

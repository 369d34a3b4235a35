// The compiled kernels, as the host chooses among them.
#pragma once

#include <cstddef>

#include "../attention.h"

namespace ortflash::sm90 {

// What a kernel is for; bits of Kernel::uses.
enum Use : unsigned {
  kFull = 1,    // every row sees all keys, but for key_lengths
  kBanded = 2,  // causal or a window
  kBiased = 4,  // attn_bias that the copy engine can read, banded or not
  kMasked = 8,  // attn_mask that the copy engine can read, with fill -inf
  kKeyed = 16,  // attn_bias and attn_mask that all rows share; the fill is -inf, or so low that scores vanish beside it
  kBlocked = 64,   // block_mask alone, of blocks from 128 on
  kAnything = 32,  // also softcap, block_mask and whatever else the others don't take
};

struct Kernel {
  const char* name;
  DType dtype;
  unsigned uses;
  bool writes_lse;
  bool scaled;  // multiplies scores by scale itself: scale_log2 is log2(e)
  int head;     // D and E fit into this
  int block_q, block_kv;
  float row_cost;     // time that a row and a key of a tile take, in that of the first kernel for the same calls
  float tile_keys;    // as so many keys more counts what a tile takes before its first and after its last step
  bool whole_rounds;  // causal tiles are dealt in whole rounds where their keys and values fit in L2
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

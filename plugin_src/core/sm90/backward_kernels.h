// The compiled kernels of the gradients, as the host chooses among them.
#pragma once

#include <cstddef>

#include "../attention.h"

namespace ortflash::sm90 {

struct BackwardKernel {
  const char* name;
  bool masked;  // takes key_lengths, block_mask and attn_mask
  int head;     // D and E fit into this
  int block_q, block_kv;
  int threads, shared_bytes;
  const void* prepare;   // void(BackwardParams), rows_threads threads a block, head / 8 threads a row
  const void* gradient;  // void(BackwardMaps, BackwardParams), a block a tile of keys of each key/value head
  const void* finish;    // void(BackwardParams), 128 threads a block, two blocks a tile of queries of each query head
  int rows_threads;
};

struct BackwardKernelList {
  const BackwardKernel* first;
  size_t count;
};

BackwardKernelList float16_backward_kernels();   // backward_float16.cu
BackwardKernelList bfloat16_backward_kernels();  // backward_bfloat16.cu

}  // namespace ortflash::sm90

// The backward's kernels that are built, as the host sees them: one table a type (backward_table.cuh).
#pragma once

#include "backward_params.h"

namespace ortflash::sm80 {

struct BackwardKernel {
  const void* function;  // void(BackwardParams)
  Gradient gradient;
  bool takes_all;     // bias, masks, softcap, dropout, rows that aren't aligned to 16 bytes
  int max_head_size;  // of D and E
  int block_q, block_kv, chunks, threads;
  int shared_bytes;
};

struct BackwardKernelList {
  const BackwardKernel* first;
  int count;
  const void* row_statistics;  // void(BackwardParams), kRowStatisticsWarps rows a thread block
  const void* sinks_gradient;  // void(BackwardParams), one sink a thread block of kSinksThreads
};

constexpr int kRowStatisticsWarps = 4;
constexpr int kSinksThreads = 256;

BackwardKernelList float16_backward_kernels();   // backward_float16.cu
BackwardKernelList bfloat16_backward_kernels();  // backward_bfloat16.cu
BackwardKernelList tf32_backward_kernels();      // backward_tf32.cu
BackwardKernelList tf32x3_backward_kernels();    // backward_tf32x3.cu

}  // namespace ortflash::sm80

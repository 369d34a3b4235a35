// The sm_80 kernels that are built, as the host sees them: one table a type (kernel_table.cuh).
#pragma once

#include "../kernel_params.h"

namespace ortflash::sm80 {

struct Kernel {
  const void* function;  // void(KernelParams)
  const char* name;      // "sm80-128x64-d64": rows x keys of a tile, head size up to
  int max_head_size;     // of D and E
  int columns;           // value columns of a tile
  int block_q, block_kv, threads;
  int shared_bytes;
  bool writes_lse;
  bool takes_terms;  // a bias of the query's type or a mask, in aligned rows
  bool takes_all;    // everything
  int max_q_len;     // rows past which a larger tile is better; 0 = none
};

struct KernelList {
  const Kernel* first;
  int count;
};

KernelList float16_kernels();   // forward_float16.cu
KernelList bfloat16_kernels();  // forward_bfloat16.cu
KernelList tf32_kernels();      // forward_tf32.cu
KernelList tf32x3_kernels();    // forward_tf32x3.cu
KernelList bf16x2_kernels();    // forward_bf16x2.cu
KernelList bf16x3_kernels();    // forward_bf16x3.cu

// Those with dropout.
KernelList float16_dropout_kernels();   // dropout_float16.cu
KernelList bfloat16_dropout_kernels();  // dropout_bfloat16.cu
KernelList tf32_dropout_kernels();      // dropout_tf32.cu
KernelList tf32x3_dropout_kernels();    // dropout_tf32x3.cu

}  // namespace ortflash::sm80

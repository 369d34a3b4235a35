// The kernels for small windows that are built, as the host sees them: one table a type (kernel_table.cuh).
#pragma once

#include "../kernel_params.h"

namespace ortflash::windows {

struct Kernel {
  const void* function;  // void(KernelParams), thread block (32, warps)
  const char* name;      // "windows-64-d64": queries and keys up to, head size up to
  int length;            // the most of S and T
  int columns;           // the most of D and E
  int warps;
  int blocks;        // of a multiprocessor
  int shared_bytes;  // of a thread block
};

struct KernelList {
  const Kernel* first;
  int count;
};

KernelList float16_kernels();   // forward_float16.cu
KernelList bfloat16_kernels();  // forward_bfloat16.cu

}  // namespace ortflash::windows

// The decoding kernels that are built, as the host sees them: one table a type (kernel_table.cuh).
#pragma once

namespace ortflash::decode {

struct Kernel {
  const void* forward;  // void(Params), thread block (32, warps)
  const void* combine;  // void(Params), thread block (32, combine_warps)
  const char* name;     // "decode-16x64-d128": rows of a tile x keys a turn, head size up to
  int columns;          // the most of D and E
  int rows;             // of a tile of queries
  int max_rows;         // of the queries of one key/value head
  int warps, combine_warps;
  int unit_keys;     // keys that a thread block takes in one turn
  int blocks;        // of a multiprocessor, at most
  int shared_bytes;  // of a thread block
};

struct KernelList {
  const Kernel* first;
  int count;
};

KernelList float16_kernels();   // forward_float16.cu
KernelList bfloat16_kernels();  // forward_bfloat16.cu

}  // namespace ortflash::decode

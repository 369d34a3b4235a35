// What one instruction set's translation unit offers to the rest of the CPU implementation.
//
// The algorithm is written once, over a small vector type (tile_attention.h), and compiled three times with different
// flags: tile_portable.cc, tile_avx2.cc, tile_avx512.cc. Only what stands in this header crosses between those files
// and code that is compiled for the baseline.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../attention.h"

namespace ortflash::cpu {

// One piece of work: `rows` consecutive queries of `heads` consecutive heads, which share one key/value head, against
// all of its keys. heads * rows is at most the kernel's max_rows. With a block mask, heads is 1 and all rows lie in one
// of its blocks.
struct Item {
  int64_t batch;
  int64_t first_head;
  int64_t heads;
  int64_t first_row;
  int64_t rows;
};

struct TileKernel {
  int64_t lanes;     // fp32 lanes of a vector; queries lie along them
  int64_t max_rows;  // most queries of an Item
  // Bytes of scratch that run() wants for these params, whatever the item; a multiple of 256.
  size_t (*scratch_bytes)(const AttentionParams& params);
  // Computes the item's rows of output and softmax_lse. `scratch` is aligned to 256.
  void (*run)(const AttentionParams& params, const Item& item, void* scratch);
};

TileKernel portable_kernel();
#ifdef ORTFLASH_CPU_X86
TileKernel avx2_kernel();
TileKernel avx512_kernel();
#endif

}  // namespace ortflash::cpu

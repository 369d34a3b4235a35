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

struct KeyRange {
  int64_t first;
  int64_t last;  // one past the end; first >= last = nothing
};

// One piece of work: `rows` consecutive queries of `heads` consecutive heads, which share one key/value head, against
// a range of its keys. heads * rows is at most the kernel's max_rows. With a block mask, heads is 1 and all rows lie in
// one of its blocks.
struct Item {
  int64_t batch;
  int64_t first_head;
  int64_t heads;
  int64_t first_row;
  int64_t rows;
  KeyRange keys;   // clipped to what the rows may see
  bool few;        // heads * rows <= kFewQueries, and all items of the call are
  float* partial;  // (heads * rows, 2 + v_head_size): where row_max, row_sum and the undivided output of this range of
                   // keys go, to be combined with those of other ranges; null = output and softmax_lse are final
};

constexpr int64_t kFewQueries = 4;

struct TileKernel {
  int64_t lanes;     // fp32 lanes of a vector; queries lie along them
  int64_t max_rows;  // most queries of an Item
  // Bytes of scratch that run() wants for these params, whatever the item; a multiple of 256.
  size_t (*scratch_bytes)(const AttentionParams& params);
  // Computes the item's rows of output and softmax_lse, or its partial. `scratch` is aligned to 256.
  void (*run)(const AttentionParams& params, const Item& item, void* scratch);
  // Computes the item's rows of output and softmax_lse from `splits` partials that lie one after the other from
  // item.partial on, of one range of keys each. Overwrites them.
  void (*combine)(const AttentionParams& params, const Item& item, int64_t splits);
};

TileKernel portable_kernel();
#ifdef ORTFLASH_CPU_X86
TileKernel avx2_kernel();
TileKernel avx512_kernel();
#endif

}  // namespace ortflash::cpu

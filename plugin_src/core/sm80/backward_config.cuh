// What a kernel of the backward is: its type, the gradient it computes, its tile, and the calls it takes.
#pragma once

#include "backward_params.h"
#include "math.cuh"
#include "panel.cuh"

namespace ortflash::sm80 {

// COLUMNS  columns of Q, K, V and dO in shared memory: D and E are padded to it
// CHUNK    columns of dK, dV or dQ that a thread block computes; COLUMNS % CHUNK == 0
// ALL      false: rows in whole aligned 16 bytes; causal, window, key_lengths, sinks, grouped heads
//          true: everything
template <Math MATH_, Gradient GRADIENT_, bool ALL_, int COLUMNS_, int CHUNK_, int BLOCK_OWN_, int BLOCK_OTHER_,
          int MIN_BLOCKS_>
struct BackwardConfig {
  static constexpr Math MATH = MATH_;
  static constexpr Gradient GRADIENT = GRADIENT_;
  static constexpr bool KEYS_OWN = GRADIENT == Gradient::kKeys;
  static constexpr bool ALL = ALL_;
  static constexpr int COLUMNS = COLUMNS_, CHUNK = CHUNK_, BLOCK_OWN = BLOCK_OWN_, BLOCK_OTHER = BLOCK_OTHER_;
  static constexpr int BLOCK_Q = KEYS_OWN ? BLOCK_OTHER : BLOCK_OWN, BLOCK_KV = KEYS_OWN ? BLOCK_OWN : BLOCK_OTHER;
  static constexpr int MIN_BLOCKS = MIN_BLOCKS_;

  static constexpr int WARPS = BLOCK_OWN / 16, THREADS = WARPS * 32;
  static constexpr int N_TILES = BLOCK_OTHER / 8;
  static constexpr int ELEMENT_BYTES = kElementBytes<MATH>;
  static constexpr int ROW_BYTES = COLUMNS * ELEMENT_BYTES;
  static constexpr int STEPS = ROW_BYTES / 32;
  static_assert(COLUMNS % CHUNK == 0 && BLOCK_OWN % 16 == 0 && BLOCK_OTHER % 16 == 0 && CHUNK % 16 == 0);

  using OwnPanel = Panel<BLOCK_OWN, ROW_BYTES, false>;
  using OtherPanel = Panel<BLOCK_OTHER, ROW_BYTES, true>;
  static constexpr int STATISTICS_SMEM = KEYS_OWN ? 3 * BLOCK_OTHER * 4 : 0;
  static constexpr int SMEM = 2 * (OwnPanel::kBytes + OtherPanel::kBytes) + STATISTICS_SMEM;
};

}  // namespace ortflash::sm80

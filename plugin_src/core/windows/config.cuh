// What a kernel for small windows is: type, sizes, and how much shared memory its copies take.
#pragma once

#include "../sm80/math.cuh"
#include "../sm80/panel.cuh"

namespace ortflash::windows {

// COLUMNS: the most of D and E. KEYS: the most of S and T. Each of WARPS warps has room for the K, V and Q of
// one window; before them lies the block's head's bias. M_TILES to TERMS are what sm80's functions on scores read as
// well.
template <sm80::Math MATH_, int COLUMNS_, int KEYS_, int WARPS_, int MIN_BLOCKS_>
struct Config {
  static constexpr sm80::Math MATH = MATH_;
  static constexpr int COLUMNS = COLUMNS_, KEYS = KEYS_, WARPS = WARPS_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr int THREADS = 32 * WARPS;

  static constexpr int ELEMENT_BYTES = 2;
  static constexpr int M_TILES = 1, N_TILES = KEYS / 8, O_TILES = COLUMNS / 8, STEPS = COLUMNS / 16;
  static constexpr bool ALL = true, TERMS = true;

  using KeyPanel = sm80::Panel<KEYS, COLUMNS * ELEMENT_BYTES, /*DEALT=*/true>;
  using QueryPanel = sm80::Panel<KEYS, COLUMNS * ELEMENT_BYTES, /*DEALT=*/false>;
  static constexpr int VALUE_AT = KeyPanel::kBytes, QUERY_AT = 2 * KeyPanel::kBytes;
  static constexpr int WINDOW_SMEM = QUERY_AT + QueryPanel::kBytes;
  static constexpr int BIAS_SMEM = KEYS * 128;  // staged_bias.cuh
  static constexpr int SMEM = BIAS_SMEM + WARPS * WINDOW_SMEM;
};

}  // namespace ortflash::windows

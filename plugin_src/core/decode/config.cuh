// What a decoding kernel is: type, sizes, and how much shared memory its copies take.
#pragma once

#include "../sm80/math.cuh"
#include "../sm80/panel.cuh"

namespace ortflash::decode {

// COLUMNS: the most of D and E. M_TILES: 16-row tiles, mma's smallest, of queries. Each of WARPS warps has a ring of
// STAGES stages, each of KEYS keys of K and of V. N_TILES to TERMS are what sm80's functions on scores read as well.
template <sm80::Math MATH_, int COLUMNS_, int M_TILES_, int WARPS_, int STAGES_, int MIN_BLOCKS_>
struct Config {
  static constexpr sm80::Math MATH = MATH_;
  static constexpr int COLUMNS = COLUMNS_, M_TILES = M_TILES_, WARPS = WARPS_, STAGES = STAGES_;
  static constexpr int MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int ROWS = 16 * M_TILES;
  static constexpr int KEYS = 16;
  static constexpr int UNIT_KEYS = WARPS * KEYS;  // keys that a thread block takes in one turn

  static constexpr int ELEMENT_BYTES = 2;
  static constexpr int N_TILES = KEYS / 8, O_TILES = COLUMNS / 8, STEPS = COLUMNS / 16;
  static constexpr bool ALL = true, TERMS = true;

  using Panel = sm80::Panel<KEYS, COLUMNS * ELEMENT_BYTES, /*DEALT=*/true>;
  static constexpr int STAGE_SMEM = 2 * Panel::kBytes;
  static constexpr int RING_SMEM = STAGES * STAGE_SMEM;  // of one warp

  // A warp's result takes the place of its ring: rows of fp32, apart by 32 bytes more than they need, so that the eight
  // rows which are stored together lie in different banks.
  static constexpr int RESULT_PITCH = COLUMNS + 8;
  static_assert(ROWS * RESULT_PITCH * static_cast<int>(sizeof(float)) <= RING_SMEM, "a result must fit the ring");

  // Q stays in registers where those of O leave room for it; otherwise the warps share it.
  static constexpr bool Q_IN_REGISTERS = M_TILES == 1 && COLUMNS <= 128;
  using QueryPanel = sm80::Panel<ROWS, COLUMNS * ELEMENT_BYTES, /*DEALT=*/false>;

  static constexpr int STATES_AT = WARPS * RING_SMEM;  // the warps' maxima and sums
  static constexpr int QUERY_AT = STATES_AT + WARPS * ROWS * static_cast<int>(sizeof(float2));
  static_assert(QUERY_AT % 128 == 0, "panels begin at multiples of 128 bytes");
  static constexpr int SMEM = QUERY_AT + (Q_IN_REGISTERS ? 0 : QueryPanel::kBytes);
};

}  // namespace ortflash::decode

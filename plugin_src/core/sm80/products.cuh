// The two matrix products of attention, on one warp's rows and one panel:
//
//   S (rows, keys) += Q (rows, columns) K^T        O (rows, columns) += P (rows, keys) V
//
// Accumulators have mma's layout: in tile [m][n], lane 4g + t holds (16m + g, 8n + 2t), (.., 8n + 2t + 1) and the same
// two columns of row 16m + g + 8. For S, column 8n + 2t + i is key 16 (n / 2) + 4t + 2 (n % 2) + i (panel.cuh).
#pragma once

#include <cstdint>

#include "math.cuh"
#include "panel.cuh"
#include "ptx.cuh"

namespace ortflash::sm80 {

// Where lane `lane` points in Q's panel to load a 16-row, 32-byte block as an A operand: matrices (rows 0-7, first 16
// bytes), (rows 8-15, first), (rows 0-7, second), (rows 8-15, second).
template <class P>
__device__ __forceinline__ uint32_t query_lane(int lane) {
  return P::piece_offset(lane & 15, lane >> 4);
}

// 16 keys of K by 32 bytes as two B operands: (first tile, first 16 bytes), (first tile, second), (second tile, ..),
// ...
template <class P>
__device__ __forceinline__ uint32_t key_lane(int lane) {
  return P::piece_offset(dealt_key(lane >> 4, lane & 7), lane >> 3 & 1);
}

// 16 keys of V by 32 bytes, transposed, as two B operands: (keys of the first tile, first 16 bytes), (second tile,
// first), (first tile, second), (second tile, second).
template <class P>
__device__ __forceinline__ uint32_t value_lane(int lane) {
  return P::piece_offset(dealt_key(lane >> 3 & 1, lane & 7), lane >> 4);
}

// A lane's address in the 32-byte block `block` of the same rows: the permutation is an exclusive or.
__device__ __forceinline__ uint32_t at_block(uint32_t address, int block) {
  return (address ^ ((block & 3) << 5)) + (block >> 2) * 128;
}

// load_query(m, step, raw) gives the 4 registers of Q's 16-row tile m, 32-byte step `step`. k_lane = the K panel's
// address
// + key_lane. Each K operand is loaded one step before it is multiplied, each Q operand one row of steps before.
template <Math MATH, class KeyPanel, int STEPS, int M_TILES, int N_TILES, class LoadQuery>
__device__ __forceinline__ void multiply_query_key(float (&s)[M_TILES][N_TILES][4], LoadQuery load_query,
                                                   uint32_t k_lane) {
  constexpr int kPairs = N_TILES / 2, kTotal = STEPS * kPairs;
  const auto load_key = [&](int i, uint32_t (&raw)[4]) {
    ldmatrix_x4(raw, at_block(k_lane, i / kPairs) + i % kPairs * 16 * KeyPanel::kPitch);
  };
  uint32_t q_raw[2][M_TILES][4], k_raw[2][4];
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) load_query(m, 0, q_raw[0][m]);
  load_key(0, k_raw[0]);
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    Operand<MATH, 4> a[M_TILES];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
      a[m].set(q_raw[step % 2][m]);
      if (step + 1 < STEPS) load_query(m, step + 1, q_raw[(step + 1) % 2][m]);
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int i = step * kPairs + pair;
      if (i + 1 < kTotal) load_key(i + 1, k_raw[(i + 1) % 2]);
      Operand<MATH, 4> b;
      b.set(k_raw[i % 2]);
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        multiply_add<MATH, 0>(s[m][2 * pair], a[m], b);
        multiply_add<MATH, 2>(s[m][2 * pair + 1], a[m], b);
      }
    }
  }
}

// p: the block's weights, in place of its scores. o: the accumulators; the panel's columns start at tile o_first.
// v_panel = address of the V panel.
template <Math MATH, class ValuePanel, int O_COUNT, int M_TILES, int N_TILES, int O_TILES>
__device__ __forceinline__ void multiply_weight_value(float (&o)[M_TILES][O_TILES][4], int o_first,
                                                      const float (&p)[M_TILES][N_TILES][4], uint32_t v_panel,
                                                      int lane) {
  if constexpr (kElementBytes<MATH> == 2) {
    constexpr int kPairs = O_COUNT / 2, kTotal = N_TILES / 2 * kPairs;
    const uint32_t v_lane = v_panel + value_lane<ValuePanel>(lane);
    const auto load_value = [&](int i, uint32_t (&raw)[4]) {
      ldmatrix_x4_trans(raw, at_block(v_lane, i % kPairs) + i / kPairs * 16 * ValuePanel::kPitch);
    };
    uint32_t v_raw[2][4];
    load_value(0, v_raw[0]);
    Operand<MATH, 4> a[M_TILES];
#pragma unroll
    for (int i = 0; i < kTotal; ++i) {
      const int k = i / kPairs * 2, n = i % kPairs * 2;  // 16 keys, two 8-column tiles
      if (n == 0) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          const uint32_t raw[4] = {pack_pair<MATH>(p[m][k][0], p[m][k][1]), pack_pair<MATH>(p[m][k][2], p[m][k][3]),
                                   pack_pair<MATH>(p[m][k + 1][0], p[m][k + 1][1]),
                                   pack_pair<MATH>(p[m][k + 1][2], p[m][k + 1][3])};
          a[m].set(raw);
        }
      }
      if (i + 1 < kTotal) load_value(i + 1, v_raw[(i + 1) % 2]);
      Operand<MATH, 4> b;
      b.set(v_raw[i % 2]);
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        multiply_add<MATH, 0>(o[m][o_first + n], a[m], b);
        multiply_add<MATH, 2>(o[m][o_first + n + 1], a[m], b);
      }
    }
  } else {
    // ldmatrix transposes 16-bit elements only, so V is read element by element. The inner dimension may be summed in
    // any order: A's columns t and t + 4 stand for the two keys of this tile that the lane holds.
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int k = 0; k < N_TILES; ++k) {  // 8 keys
      const uint32_t v_rows = v_panel + k / 2 * 16 * ValuePanel::kPitch + (g & 3) * 4;
      const uint32_t first = v_rows + ValuePanel::piece_offset(dealt_key(k % 2, 2 * t), g >> 2);
      const uint32_t second = v_rows + ValuePanel::piece_offset(dealt_key(k % 2, 2 * t + 1), g >> 2);
      Operand<MATH, 4> a[M_TILES];
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        const uint32_t raw[4] = {__float_as_uint(p[m][k][0]), __float_as_uint(p[m][k][2]), __float_as_uint(p[m][k][1]),
                                 __float_as_uint(p[m][k][3])};
        a[m].set(raw);
      }
#pragma unroll
      for (int n = 0; n < O_COUNT; ++n) {
        const uint32_t raw[2] = {load_shared_u32(at_block(first, n)), load_shared_u32(at_block(second, n))};
        Operand<MATH, 2> b;
        b.set(raw);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) multiply_add<MATH, 0>(o[m][o_first + n], a[m], b);
      }
    }
  }
}

}  // namespace ortflash::sm80

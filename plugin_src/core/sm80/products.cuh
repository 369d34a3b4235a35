// The two matrix products of attention, on one warp's rows and one panel:
//
//   S (rows, keys) += Q (rows, columns) K^T        O (rows, columns) += P (rows, keys) V
//
// Accumulators have mma's layout: in tile [m][n], lane 4g + t holds (16m + g, 8n + 2t), (.., 8n + 2t + 1) and the same
// two columns of row 16m + g + 8.
#pragma once

#include <cstdint>

#include "math.cuh"
#include "panel.cuh"
#include "ptx.cuh"

namespace ortflash::sm80 {

// Where lane `lane` points in a panel to load a 16-row, 32-byte block as an A operand (Q), and V through .trans:
// matrices (rows 0-7, first 16 bytes), (rows 8-15, first), (rows 0-7, second), (rows 8-15, second).
template <class P>
__device__ __forceinline__ uint32_t rows_then_columns(int lane) {
  return P::piece_offset(lane & 15, lane >> 4);
}

// The same block as two B operands (K): (rows 0-7, first), (rows 0-7, second), (rows 8-15, first), (rows 8-15, second).
template <class P>
__device__ __forceinline__ uint32_t columns_then_rows(int lane) {
  return P::piece_offset((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
}

// A lane's address in the 32-byte block `block` of the same rows: the permutation is an exclusive or.
__device__ __forceinline__ uint32_t at_block(uint32_t address, int block) {
  return (address ^ ((block & 3) << 5)) + (block >> 2) * 128;
}

// load_query(m, step, raw) gives the 4 registers of Q's 16-row tile m, 32-byte step `step`.
// k_lane = address of the K panel + columns_then_rows.
template <Math MATH, class KeyPanel, int STEPS, int M_TILES, int N_TILES, class LoadQuery>
__device__ __forceinline__ void multiply_query_key(float (&s)[M_TILES][N_TILES][4], LoadQuery load_query,
                                                   uint32_t k_lane) {
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    Operand<MATH, 4> a[M_TILES];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
      uint32_t raw[4];
      load_query(m, step, raw);
      a[m].set(raw);
    }
    const uint32_t k_step = at_block(k_lane, step);
#pragma unroll
    for (int n = 0; n < N_TILES; n += 2) {
      uint32_t raw[4];
      ldmatrix_x4(raw, k_step + n * 8 * KeyPanel::kPitch);
      Operand<MATH, 4> b;
      b.set(raw);
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        multiply_add<MATH, 0>(s[m][n], a[m], b);
        multiply_add<MATH, 2>(s[m][n + 1], a[m], b);
      }
    }
  }
}

// p: the block's weights, in place of its scores. o: the accumulators of the panel's columns, starting at tile O_FIRST.
// v_panel = address of the V panel.
template <Math MATH, class ValuePanel, int O_FIRST, int O_COUNT, int M_TILES, int N_TILES, int O_TILES>
__device__ __forceinline__ void multiply_weight_value(float (&o)[M_TILES][O_TILES][4],
                                                      const float (&p)[M_TILES][N_TILES][4], uint32_t v_panel,
                                                      int lane) {
  if constexpr (kElementBytes<MATH> == 2) {
    const uint32_t v_lane = v_panel + rows_then_columns<ValuePanel>(lane);
#pragma unroll
    for (int k = 0; k < N_TILES; k += 2) {  // 16 keys
      Operand<MATH, 4> a[M_TILES];
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        const uint32_t raw[4] = {pack_pair<MATH>(p[m][k][0], p[m][k][1]), pack_pair<MATH>(p[m][k][2], p[m][k][3]),
                                 pack_pair<MATH>(p[m][k + 1][0], p[m][k + 1][1]),
                                 pack_pair<MATH>(p[m][k + 1][2], p[m][k + 1][3])};
        a[m].set(raw);
      }
#pragma unroll
      for (int n = 0; n < O_COUNT; n += 2) {
        uint32_t raw[4];
        ldmatrix_x4_trans(raw, at_block(v_lane, n / 2) + k * 8 * ValuePanel::kPitch);
        Operand<MATH, 4> b;
        b.set(raw);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          multiply_add<MATH, 0>(o[m][O_FIRST + n], a[m], b);
          multiply_add<MATH, 2>(o[m][O_FIRST + n + 1], a[m], b);
        }
      }
    }
  } else {
    // ldmatrix transposes 16-bit elements only, so V is read element by element. The inner dimension may be summed in
    // any order: A's column t stands for key 2t and its column t + 4 for key 2t + 1, which are the ones this lane holds.
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int k = 0; k < N_TILES; ++k) {  // 8 keys
      const uint32_t even = v_panel + k * 8 * ValuePanel::kPitch + ValuePanel::piece_offset(2 * t, g >> 2) + (g & 3) * 4;
      const uint32_t odd =
          v_panel + k * 8 * ValuePanel::kPitch + ValuePanel::piece_offset(2 * t + 1, g >> 2) + (g & 3) * 4;
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        const uint32_t a_raw[4] = {__float_as_uint(p[m][k][0]), __float_as_uint(p[m][k][2]),
                                   __float_as_uint(p[m][k][1]), __float_as_uint(p[m][k][3])};
        Operand<MATH, 4> a;
        a.set(a_raw);
#pragma unroll
        for (int n = 0; n < O_COUNT; ++n) {
          const uint32_t b_raw[2] = {load_shared_u32(at_block(even, n)), load_shared_u32(at_block(odd, n))};
          Operand<MATH, 2> b;
          b.set(b_raw);
          multiply_add<MATH, 0>(o[m][O_FIRST + n], a, b);
        }
      }
    }
  }
}

}  // namespace ortflash::sm80

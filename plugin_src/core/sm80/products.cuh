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

// Pairs of 8-column tiles whose products in pieces go side by side: enough that no mma waits for the one before.
template <int M_TILES, int PAIRS>
inline constexpr int kPairsTogether = M_TILES == 1 && PAIRS % 2 == 0 ? 2 : 1;

// The same in pieces: load_query(m, step, piece, raw), and K's pieces lie KeyPanel::kBytes apart.
template <int PIECES, class KeyPanel, int STEPS, int M_TILES, int N_TILES, class LoadQuery>
__device__ __forceinline__ void multiply_query_key_pieces(float (&s)[M_TILES][N_TILES][4], LoadQuery load_query,
                                                          uint32_t k_lane) {
  constexpr int kTogether = kPairsTogether<M_TILES, N_TILES / 2>;
  constexpr int kGroups = N_TILES / 2 / kTogether, kTotal = STEPS * kGroups;
  const auto load_key = [&](int i, uint32_t (&raw)[kTogether][PIECES][4]) {
#pragma unroll
    for (int pair = 0; pair < kTogether; ++pair) {
#pragma unroll
      for (int piece = 0; piece < PIECES; ++piece) {
        ldmatrix_x4(raw[pair][piece], at_block(k_lane, i / kGroups) + piece * KeyPanel::kBytes +
                                          (i % kGroups * kTogether + pair) * 16 * KeyPanel::kPitch);
      }
    }
  };
  const auto load_queries = [&](int step, uint32_t (&raw)[M_TILES][PIECES][4]) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int piece = 0; piece < PIECES; ++piece) load_query(m, step, piece, raw[m][piece]);
    }
  };
  uint32_t q_raw[2][M_TILES][PIECES][4], k_raw[2][kTogether][PIECES][4];
  load_queries(0, q_raw[0]);
  load_key(0, k_raw[0]);
#pragma unroll
  for (int i = 0; i < kTotal; ++i) {
    const int step = i / kGroups, group = i % kGroups;
    if (group == 0 && step + 1 < STEPS) load_queries(step + 1, q_raw[(step + 1) % 2]);
    if (i + 1 < kTotal) load_key(i + 1, k_raw[(i + 1) % 2]);
    multiply_add_pieces(s, group * 2 * kTogether, q_raw[step % 2], k_raw[i % 2]);
  }
}

// p: the block's weights, in place of its scores. o: the accumulators; the panel's columns start at tile o_first.
// v_panel = address of the V panel.
// SUM: o's last tile, past the columns, gets the sum of each row's weights, in every column.
template <Math MATH, class ValuePanel, int O_COUNT, bool SUM = false, int M_TILES, int N_TILES, int O_TILES>
__device__ __forceinline__ void multiply_weight_value(float (&o)[M_TILES][O_TILES][4], int o_first,
                                                      const float (&p)[M_TILES][N_TILES][4], uint32_t v_panel,
                                                      int lane) {
  if constexpr (kPieces<MATH> > 1) {
    constexpr int kPieceCount = kPieces<MATH>, kTogether = kPairsTogether<M_TILES, O_COUNT / 2>;
    constexpr int kGroups = O_COUNT / 2 / kTogether, kTotal = N_TILES / 2 * kGroups;
    const uint32_t v_lane = v_panel + value_lane<ValuePanel>(lane);
    const auto load_value = [&](int i, uint32_t (&raw)[kTogether][kPieceCount][4]) {
#pragma unroll
      for (int pair = 0; pair < kTogether; ++pair) {
#pragma unroll
        for (int piece = 0; piece < kPieceCount; ++piece) {
          ldmatrix_x4_trans(raw[pair][piece], at_block(v_lane, i % kGroups * kTogether + pair) +
                                                  piece * ValuePanel::kBytes + i / kGroups * 16 * ValuePanel::kPitch);
        }
      }
    };
    uint32_t v_raw[2][kTogether][kPieceCount][4], a[M_TILES][kPieceCount][4];
    load_value(0, v_raw[0]);
#pragma unroll
    for (int i = 0; i < kTotal; ++i) {
      const int k = i / kGroups * 2, group = i % kGroups;  // 16 keys
      if (group == 0) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            uint32_t pieces[kPieceCount];
            cut_pair(p[m][k + j / 2][j % 2 * 2], p[m][k + j / 2][j % 2 * 2 + 1], pieces);
#pragma unroll
            for (int piece = 0; piece < kPieceCount; ++piece) a[m][piece][j] = pieces[piece];
          }
        }
      }
      if (i + 1 < kTotal) load_value(i + 1, v_raw[(i + 1) % 2]);
      multiply_add_pieces(o, o_first + group * 2 * kTogether, a, v_raw[i % 2]);
    }
  } else if constexpr (kElementBytes<MATH> == 2) {
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
          if constexpr (SUM) {
            constexpr uint32_t kOnes = MATH == Math::kFloat16 ? 0x3c003c00 : 0x3f803f80;
            multiply_add<MATH, 0>(o[m][O_TILES - 1], a[m], Operand<MATH, 2>{{kOnes, kOnes}});
          }
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

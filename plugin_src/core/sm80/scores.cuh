// A warp's block of scores between the two products: modified, masked, and turned into weights.
//
// s[m][n][i]: row 16m + g + 8 (i / 2) of the warp, key first_key + 16 (n / 2) + 4t + 2 (n % 2) + i % 2 (products.cuh).
#pragma once

#include "../block_range.cuh"
#include "../online_softmax.cuh"
#include "../score_mod.cuh"
#include "math.cuh"
#include "tile_index.cuh"

namespace ortflash::sm80 {

template <class C>
using Scores = float[C::M_TILES][C::N_TILES][4];

// Row `i` of a lane's 2 * M_TILES rows, in the warp; and key of element i of tile n, from the block's first.
__device__ __forceinline__ int lane_row(int i, int lane) { return i / 2 * 16 + i % 2 * 8 + lane / 4; }
__device__ __forceinline__ int lane_key(int n, int i, int lane) {
  return n / 2 * 16 + lane % 4 * 4 + n % 2 * 2 + i % 2;
}

// s = scale * s, softcapped
template <class C>
__device__ __forceinline__ void scale_scores(Scores<C>& s, const KernelParams& p) {
#pragma unroll
  for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
    for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[m][n][i] *= p.scale;
        // tanhf, not tanh.approx: that is off by 5e-4, and cap * 5e-4 is a lot for a score.
        if (C::ALL && p.softcap != 0.0f) s[m][n][i] = p.softcap * tanhf(s[m][n][i] * p.softcap_inverse);
      }
    }
  }
}

// A lane's elements of a bias, BYTES each, for one block.
template <class C, int BYTES, int ROWS>
struct BiasTile {
  uint32_t words[ROWS][C::N_TILES / 2][BYTES];

  __device__ __forceinline__ float element(int row, int group, int j) const {
    const uint32_t word = words[row][group][j * BYTES / 4];
    if constexpr (BYTES == 4) return __uint_as_float(word);
    const uint32_t bits = j % 2 == 0 ? word & 0xffff : word >> 16;
    return C::MATH == Math::kFloat16 ? f16_to_float(bits) : bf16_to_float(bits);
  }

  // s = factor * s + bias, in rows [first_row, first_row + ROWS)
  __device__ __forceinline__ void add_to(Scores<C>& s, float factor, int first_row) const {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = s[(first_row + r) / 2][n][(first_row + r) % 2 * 2 + i];
          score = fmaf(score, factor, element(r, n / 2, n % 2 * 2 + i));
        }
      }
    }
  }
};

// A lane's elements of a mask, one byte each, for one block.
template <class C>
struct MaskTile {
  uint32_t words[2 * C::M_TILES][C::N_TILES / 2][1];

  // Whether any of the warp's elements is True.
  __device__ __forceinline__ bool any_kept() const {
    uint32_t any = 0;
#pragma unroll
    for (int r = 0; r < 2 * C::M_TILES; ++r) {
#pragma unroll
      for (int group = 0; group < C::N_TILES / 2; ++group) any |= words[r][group][0];
    }
    return __any_sync(0xffffffffu, any != 0);
  }

  // s = mask ? s : fill
  __device__ __forceinline__ void apply_to(Scores<C>& s, float fill) const {
#pragma unroll
    for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t byte = 0xffu << ((n % 2 * 2 + i % 2) * 8);
          if ((words[2 * m + i / 2][n / 2][0] & byte) == 0) s[m][n][i] = fill;
        }
      }
    }
  }
};

// s = -inf where block_mask is False. For tiles that one element of block_mask doesn't cover.
template <class C>
__device__ __forceinline__ void exclude_blocks(Scores<C>& s, const KernelParams& p, const uint8_t* block_mask,
                                               const RowMap<C::MAY_PACK>& rows, int warp_row, int first_key, int lane) {
#pragma unroll
  for (int r = 0; r < 2 * C::M_TILES; ++r) {
    const int position = rows.position(rows.clamped(warp_row + lane_row(r, lane)));
    const uint8_t* row = block_mask + position / p.block_size * p.block_mask_strides.row;
#pragma unroll
    for (int n = 0; n < C::N_TILES; n += 2) {  // 16 keys lie in one block: block_size is a multiple of 16
      const int key = min(first_key + n * 8, p.kv_len - 1);
      if (row[key / p.block_size * p.block_mask_strides.column] == 0) {
#pragma unroll
        for (int i = r % 2 * 2; i < r % 2 * 2 + 2; ++i) s[r / 2][n][i] = s[r / 2][n + 1][i] = -INFINITY;
      }
    }
  }
}

// s = -inf outside [lower, upper) of each row
template <class C>
__device__ __forceinline__ void exclude_outside(Scores<C>& s, const KeyRange& keys, const RowMap<C::MAY_PACK>& rows,
                                                int warp_row, int first_key, int lane) {
#pragma unroll
  for (int r = 0; r < 2 * C::M_TILES; ++r) {
    const int position = rows.position(warp_row + lane_row(r, lane));
    const int lower = keys.lower(position);
    const unsigned count = max(keys.upper(position) - lower, 0);
    const int first = first_key - lower;
#pragma unroll
    for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
      for (int i = r % 2 * 2; i < r % 2 * 2 + 2; ++i) {
        if (static_cast<unsigned>(first + lane_key(n, i, lane)) >= count) s[r / 2][n][i] = -INFINITY;
      }
    }
  }
}

// m rises to the new block's maximum; O and the sums follow.
//
// Where a row is far (online_softmax.cuh), m is subtracted from the scores here and `base` is 0; usually it is m.
// any_far: whether a row of the warp is far, which only a risen m can change.
template <class C, int ACCUMULATORS>
__device__ __forceinline__ void raise_maximum(Scores<C>& s, float (&o)[C::M_TILES][ACCUMULATORS][4],
                                              OnlineSoftmax (&state)[2 * C::M_TILES], float (&base)[2 * C::M_TILES],
                                              float factor, bool& any_far) {
  constexpr int kRows = 2 * C::M_TILES;
  float block_max[kRows], rescale[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) block_max[r] = fmaxf(s[r / 2][0][r % 2 * 2], s[r / 2][0][r % 2 * 2 + 1]);
#pragma unroll
  for (int n = 1; n < C::N_TILES; ++n) {  // rows inside: their chains of comparisons overlap
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      block_max[r] = fmaxf(block_max[r], fmaxf(s[r / 2][n][r % 2 * 2], s[r / 2][n][r % 2 * 2 + 1]));
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) block_max[r] = max_across_row_lanes(block_max[r]);
  bool risen = false;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    rescale[r] = state[r].raise_max(block_max[r], factor);
    risen |= rescale[r] != 1.0f;
  }
  if (__any_sync(0xffffffffu, risen)) {
    bool far = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) far |= state[r].far(factor);
    any_far = __any_sync(0xffffffffu, far);
#pragma unroll
    for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < ACCUMULATORS; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][n][i] *= rescale[2 * m + i / 2];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) base[r] = state[r].base();
  if (any_far) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
        for (int i = r % 2 * 2; i < r % 2 * 2 + 2; ++i) s[r / 2][n][i] -= base[r];
      }
      base[r] = 0.0f;
    }
  }
}

// s = exp(s - base), in place, and where SUMS into the sums.
template <class C, bool SUMS = true>
__device__ __forceinline__ void scores_to_weights(Scores<C>& s, OnlineSoftmax (&state)[2 * C::M_TILES],
                                                  const float (&base)[2 * C::M_TILES], float factor) {
#pragma unroll
  for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2 * C::M_TILES; ++r) {
        float& score = s[r / 2][n][r % 2 * 2 + i];
        score = fast_exp2(fmaf(score, factor, -(base[r] * factor)));
        if constexpr (SUMS) state[r].row_sum += score;
      }
    }
  }
}

}  // namespace ortflash::sm80

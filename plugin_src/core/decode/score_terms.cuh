// What happens to a warp's scores between Q K^T and the softmax, in the operator's order (../score_mod.cuh). A RowMap
// is something like Rows (rows.cuh): where a row of the tile lies in a tensor, and which position it is.
#pragma once

#include <cmath>
#include <cstdint>

#include "../block_range.cuh"
#include "../kernel_params.h"
#include "../score_mod.cuh"
#include "../sm80/scores.cuh"

namespace ortflash::decode {

// A lane's pieces of bias and mask for one block of keys, loaded while those are still on their way.
template <class C>
struct ScoreTerms {
  static constexpr int kRows = 2 * C::M_TILES;
  const uint8_t* bias_row[kRows];
  const uint8_t* mask_row[kRows];
  sm80::BiasTile<C, 2, kRows> bias;
  sm80::MaskTile<C> mask;

  template <class RowMap>
  __device__ __forceinline__ ScoreTerms(const KernelParams& p, const RowMap& rows, int batch, int lane) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = sm80::lane_row(r, lane);
      bias_row[r] = static_cast<const uint8_t*>(p.bias) +
                    (batch * p.bias_strides.batch + rows.element(p.bias_strides, row)) * p.bias_bytes;
      mask_row[r] = p.mask + batch * p.mask_strides.batch + rows.element(p.mask_strides, row);
    }
  }

  // Pieces that begin at this key.
  __device__ __forceinline__ void load(const KernelParams& p, int key, bool with_bias = true) {
    if (with_bias && p.bias != nullptr && p.bias_bytes == 2) {
      load_rows<true, 2>(bias.words, bias_row, key, p.kv_len, p.bias_vector, p.bias_strides.column);
    }
    if (p.mask != nullptr)
      load_rows<true, 1>(mask.words, mask_row, key, p.kv_len, p.mask_vector, p.mask_strides.column);
  }

  // s = mask ? softcap(scale s) + bias : mask_fill. An fp32 bias is rare, and loaded row by row only here.
  __device__ __forceinline__ void apply(sm80::Scores<C>& s, const KernelParams& p, int key) const {
    scale(s, p);
    if (p.bias != nullptr && p.bias_bytes == 2) {
      bias.add_to(s, 1.0f, 0);
    } else if (p.bias != nullptr) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sm80::BiasTile<C, 4, 1> row;
        load_rows<true, 4>(row.words, {bias_row[r]}, key, p.kv_len, p.bias_vector, p.bias_strides.column);
        row.add_to(s, 1.0f, r);
      }
    }
    if (p.mask != nullptr) mask.apply_to(s, p.mask_fill);
  }

 private:
  static __device__ __forceinline__ void scale(sm80::Scores<C>& s, const KernelParams& p) {
    if (p.softcap != 0.0f) {
      sm80::scale_scores<C>(s, p);
      return;
    }
#pragma unroll
    for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] *= p.scale;
      }
    }
  }
};

// s = -inf outside [lower, upper) of each row.
template <class C, class RowMap>
__device__ __forceinline__ void exclude_outside(sm80::Scores<C>& s, const KeyRange& range, const RowMap& rows,
                                                int first_key, int lane) {
#pragma unroll
  for (int r = 0; r < 2 * C::M_TILES; ++r) {
    const int position = rows.position(sm80::lane_row(r, lane));
    const int lower = range.lower(position);
    const unsigned count = max(range.upper(position) - lower, 0);
#pragma unroll
    for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
      for (int i = r % 2 * 2; i < r % 2 * 2 + 2; ++i) {
        if (static_cast<unsigned>(first_key - lower + sm80::lane_key(n, i, lane)) >= count) s[r / 2][n][i] = -INFINITY;
      }
    }
  }
}

}  // namespace ortflash::decode

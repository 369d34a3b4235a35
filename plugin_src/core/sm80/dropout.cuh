// Dropout of a warp's block of weights, between the two products: dropout.h in the layout of scores.cuh.
#pragma once

#include "../dropout.h"
#include "scores.cuh"

namespace ortflash::sm80 {

// p *= kept / (1 - dropout_p). Four adjacent keys of a row are one lane's, eight share a Philox call.
template <class C>
__device__ __forceinline__ void drop_weights(Scores<C>& p, const KernelParams& params, PhiloxKey key, int batch,
                                             const RowMap<C::MAY_PACK>& rows, int warp_row, int first_key, int lane) {
#pragma unroll
  for (int r = 0; r < 2 * C::M_TILES; ++r) {
    const int row = rows.clamped(warp_row + lane_row(r, lane));
    const uint32_t head = static_cast<uint32_t>(rows.head(row)), position = static_cast<uint32_t>(rows.position(row));
#pragma unroll
    for (int n = 0; n < C::N_TILES; n += 2) {
      const uint32_t group = static_cast<uint32_t>(first_key + lane_key(n, 0, lane)) / kDropoutColumns;
      const PhiloxWords words = dropout_words(key, static_cast<uint32_t>(batch), head, position, group);
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // keys 4 (lane % 2) + j of the eight
        const uint32_t word = lane % 2 == 0 ? words.word[j / 2] : words.word[2 + j / 2];
        float& weight = p[r / 2][n + j / 2][r % 2 * 2 + j % 2];
        weight = dropout_keeps(word, j, params.dropout_threshold) ? weight * params.dropout_scale : 0.0f;
      }
    }
  }
}

}  // namespace ortflash::sm80

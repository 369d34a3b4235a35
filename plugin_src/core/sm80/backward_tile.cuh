// One tile of scores in the backward, a warp's 16 rows of it: from the products S = Q K^T and dP = dO V^T, or their
// transposes, to the weights that the values had, P Z, and to the gradient dX of scale * Q K^T (attention_grad.h).
//
// Own rows are the tile's rows and other rows its columns (backward_config.cuh). s[0][n][i]: own row g + 8 (i / 2) of
// the warp, other row 16 (n / 2) + 4t + 2 (n % 2) + i % 2 of the block (panel.cuh).
#pragma once

#include "../block_range.cuh"
#include "../dropout.h"
#include "../online_softmax.cuh"
#include "../score_mod.cuh"
#include "backward_config.cuh"
#include "backward_params.h"
#include "products.cuh"

namespace ortflash::sm80 {

template <class C>
using BackwardScores = float[1][C::N_TILES][4];

// Bias, masks and dropout of one (batch, query head).
struct HeadTerms {
  const uint8_t* bias;
  const uint8_t* mask;
  const uint8_t* block_mask;
  uint32_t batch, head;

  __device__ __forceinline__ HeadTerms(const KernelParams& p, int batch_index, int head_index)
      : bias(nullptr), mask(nullptr), block_mask(nullptr), batch(batch_index), head(head_index) {
    const auto element = [&](const Strides& s) { return batch_index * s.batch + head_index * s.head; };
    if (p.bias != nullptr) bias = static_cast<const uint8_t*>(p.bias) + element(p.bias_strides) * p.bias_bytes;
    if (p.mask != nullptr) mask = p.mask + element(p.mask_strides);
    if (p.block_mask != nullptr) block_mask = p.block_mask + element(p.block_mask_strides);
  }
};

// The lane's eight scores of 16 own rows and 16 others: element e of row r.
struct ScoreGroup {
  float value[2][4];
  float slope[2][4];  // what the gradient is multiplied by on the way to scale * Q K^T: 1 - tanh^2; 0 where replaced
  uint32_t replaced;  // bit 4r + e: by mask_fill or block_mask, so that the bias has no part in it
};

// The lane's eight elements, of BYTES bytes each, of a tensor (query, key) at `base`. own, other: their rows, inside
// the tensors. by_four: four adjacent keys may be loaded together.
template <class C, int BYTES>
__device__ __forceinline__ void load_elements(uint32_t (&found)[2][4], const uint8_t* base, const Strides& strides,
                                              const int (&own)[2], const int (&other)[4], bool by_four) {
  const int64_t own_stride = C::KEYS_OWN ? strides.column : strides.row;
  const int64_t other_stride = C::KEYS_OWN ? strides.row : strides.column;
  if (!C::KEYS_OWN && by_four && other[3] == other[0] + 3) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t words[BYTES];
      load_four<BYTES>(words, base + own[r] * own_stride * BYTES, other[0]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        found[r][e] = words[e * BYTES / 4] >> (e * BYTES % 4 * 8);
        if (BYTES < 4) found[r][e] &= (1u << (BYTES % 4 * 8)) - 1;
      }
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const uint8_t* column = base + other[e] * other_stride * BYTES;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint8_t* from = column + own[r] * own_stride * BYTES;
      if constexpr (BYTES == 1) found[r][e] = __ldg(from);
      if constexpr (BYTES == 2) found[r][e] = __ldg(reinterpret_cast<const uint16_t*>(from));
      if constexpr (BYTES == 4) found[r][e] = __ldg(reinterpret_cast<const uint32_t*>(from));
    }
  }
}

template <class C>
__device__ __forceinline__ void add_bias(ScoreGroup& scores, const KernelParams& p, const HeadTerms& terms,
                                         const int (&own)[2], const int (&other)[4]) {
  uint32_t found[2][4];
  const bool float_bias = C::ELEMENT_BYTES == 4 || p.bias_bytes == 4;
  if (float_bias) {
    load_elements<C, 4>(found, terms.bias, p.bias_strides, own, other, p.bias_vector);
  } else {
    load_elements<C, 2>(found, terms.bias, p.bias_strides, own, other, p.bias_vector);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t bits = found[i / 4][i % 4];
    const float half = C::MATH == Math::kBFloat16 ? bf16_to_float(bits) : f16_to_float(bits);
    scores.value[i / 4][i % 4] += float_bias ? __uint_as_float(bits) : half;
  }
}

// softcap, bias, mask and block_mask of scaled products. first_own and first_other are multiples of 16, as blocks of
// block_mask are.
template <class C>
__device__ __forceinline__ void modify_scores(ScoreGroup& scores, const KernelParams& p, const HeadTerms& terms,
                                              int first_own, int first_other, int lane) {
  const int own_count = C::KEYS_OWN ? p.kv_len : p.q_len, other_count = C::KEYS_OWN ? p.q_len : p.kv_len;
  int own[2], other[4];
#pragma unroll
  for (int r = 0; r < 2; ++r) own[r] = min(first_own + lane / 4 + 8 * r, own_count - 1);
#pragma unroll
  for (int e = 0; e < 4; ++e) other[e] = min(first_other + lane % 4 * 4 + e, other_count - 1);

  if (p.softcap != 0.0f) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float t = tanhf(scores.value[i / 4][i % 4] * p.softcap_inverse);
      scores.value[i / 4][i % 4] = p.softcap * t;
      scores.slope[i / 4][i % 4] = 1.0f - t * t;
    }
  }
  if (terms.bias != nullptr) add_bias<C>(scores, p, terms, own, other);
  if (terms.mask != nullptr) {
    uint32_t kept[2][4];
    load_elements<C, 1>(kept, terms.mask, p.mask_strides, own, other, p.mask_vector);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (kept[i / 4][i % 4] != 0) continue;
      scores.value[i / 4][i % 4] = p.mask_fill;
      scores.slope[i / 4][i % 4] = 0.0f;
      scores.replaced |= 1u << i;
    }
  }
  if (terms.block_mask != nullptr) {
    const int query = min(C::KEYS_OWN ? first_other : first_own, p.q_len - 1);
    const int key = min(C::KEYS_OWN ? first_own : first_other, p.kv_len - 1);
    if (terms.block_mask[query / p.block_size * p.block_mask_strides.row +
                         key / p.block_size * p.block_mask_strides.column] == 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) scores.value[i / 4][i % 4] = -INFINITY;
      scores.replaced = 0xff;
    }
  }
}

// Which weights the forward dropped (dropout.h).
struct DropoutMask {
  bool on;
  PhiloxKey key;

  __device__ __forceinline__ explicit DropoutMask(const BackwardParams& params) : on(params.dropout_seed != nullptr) {
    if (on) key = dropout_key(params.dropout_seed[0], params.dropout_seed[1]);
  }

  // Of eight adjacent keys of a row, a bit each: which are kept.
  __device__ __forceinline__ uint32_t kept(const HeadTerms& terms, int query, int key_group, uint32_t threshold) const {
    const PhiloxWords words = dropout_words(key, terms.batch, terms.head, query, key_group);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kDropoutColumns; ++i)
      bits |= static_cast<uint32_t>(dropout_keeps(words.word[i / 2], i, threshold)) << i;
    return bits;
  }
};

// For the lane's eight elements of 16 of the others, e of row r: bit 4r + e, whether the weight is kept.
template <class C>
__device__ __forceinline__ uint32_t kept_elements(const DropoutMask& dropout, const HeadTerms& terms, int first_own,
                                                  int first_other, uint32_t threshold, int lane) {
  const int g = lane / 4, t = lane % 4;
  uint32_t kept = 0;
  if constexpr (C::KEYS_OWN) {
    // The eight lanes of a column share their Philox calls: the eight keys 8r .. 8r + 7 of each of four queries.
    const uint32_t mine = dropout.kept(terms, first_other + 4 * t + g % 4, first_own / 8 + g / 4, threshold);
#pragma unroll
    for (int i = 0; i < 8; ++i) kept |= (__shfl_sync(0xffffffffu, mine, 4 * i + t) >> g & 1) << i;
  } else {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t bits = dropout.kept(terms, first_own + g + 8 * r, first_other / 8 + t / 2, threshold);
      kept |= (bits >> t % 2 * 4 & 15) << 4 * r;
    }
  }
  return kept;
}

// RowStatistics of one row of queries.
struct RowState {
  float lse, correction, delta;
};
constexpr RowState kNoRow = {INFINITY, 0.0f, 0.0f};

__device__ __forceinline__ RowState load_row(const RowStatistics& rows, int64_t row) {
  return {rows.lse[row], rows.correction[row], rows.delta[row]};
}

// s = P Z and dp = dX (for d_bias: dS), in place of the products. `statistics`: 3 x BLOCK_OTHER floats in shared memory
// of the others' rows where those are queries; `own`: of the lane's two rows where they are its own.
// clean: each query of the tile sees each key of it.
template <class C>
__device__ __forceinline__ void scores_to_gradients(BackwardScores<C>& s, BackwardScores<C>& dp,
                                                    const BackwardParams& params, const KeyRange& keys,
                                                    const HeadTerms& terms, const DropoutMask& dropout, int first_own,
                                                    int first_other, const float* statistics, const RowState (&own)[2],
                                                    bool clean, int lane) {
  const KernelParams& p = params.forward;
#pragma unroll
  for (int group = 0; group < C::N_TILES / 2; ++group) {  // 16 of the others, of which the lane has four
    const int other0 = group * 16 + lane % 4 * 4;
    float4 lse, correction, delta;
    if constexpr (C::KEYS_OWN) {
      lse = *reinterpret_cast<const float4*>(statistics + other0);
      correction = *reinterpret_cast<const float4*>(statistics + C::BLOCK_OTHER + other0);
      delta = *reinterpret_cast<const float4*>(statistics + 2 * C::BLOCK_OTHER + other0);
    }
    uint32_t kept = 0xff;
    if constexpr (C::ALL) {
      if (dropout.on) {
        kept = kept_elements<C>(dropout, terms, first_own, first_other + group * 16, params.dropout_threshold, lane);
      }
    }
    ScoreGroup scores;
    scores.replaced = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      scores.value[i / 4][i % 4] = s[0][group * 2 + i % 4 / 2][i / 4 * 2 + i % 2] * p.scale;
      scores.slope[i / 4][i % 4] = 1.0f;
    }
    if constexpr (C::ALL) modify_scores<C>(scores, p, terms, first_own, first_other + group * 16, lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& product = s[0][group * 2 + e / 2][r * 2 + e % 2];
        float& gradient = dp[0][group * 2 + e / 2][r * 2 + e % 2];
        const int own_row = first_own + lane / 4 + 8 * r, other_row = first_other + other0 + e;
        const int query = C::KEYS_OWN ? other_row : own_row, key = C::KEYS_OWN ? own_row : other_row;
        RowState row = own[r];
        if constexpr (C::KEYS_OWN) row = {(&lse.x)[e], (&correction.x)[e], (&delta.x)[e]};

        float& score = scores.value[r][e];
        if (!clean && (key < keys.lower(query) || key >= keys.upper(query))) score = -INFINITY;
        const float weight = fast_exp2(fmaf(score - row.lse, kLog2e, row.correction));
        float z = 1.0f;
        if constexpr (C::ALL) z = (kept >> (4 * r + e) & 1) == 0 ? 0.0f : params.dropout_scale;
        // The comparison keeps what takes no part from turning 0 * NaN into NaN.
        const float ds = weight == 0.0f ? 0.0f : weight * (z * gradient - row.delta);
        product = weight * z;
        if constexpr (C::GRADIENT == Gradient::kBias) {
          gradient = (scores.replaced >> (4 * r + e) & 1) != 0 ? 0.0f : ds;
        } else {
          gradient = ds * scores.slope[r][e];
        }
      }
    }
  }
}

// S = own1 other1^T and dP = own2 other2^T, where 1 is Q and K, 2 is dO and V.
template <class C>
__device__ __forceinline__ void multiply_own_other(BackwardScores<C>& s, uint32_t own_panel, uint32_t other_panel,
                                                   int warp_row, int lane) {
  const uint32_t own_lane = own_panel + warp_row * C::OwnPanel::kPitch + query_lane<typename C::OwnPanel>(lane);
  const auto load_own = [&](int, int step, uint32_t (&raw)[4]) { ldmatrix_x4(raw, at_block(own_lane, step)); };
  multiply_query_key<C::MATH, typename C::OtherPanel, C::STEPS>(s, load_own,
                                                                other_panel + key_lane<typename C::OtherPanel>(lane));
}

// Rows [first, first + panel's rows) of a tensor to shared memory; zeros past `count` rows and past `size` columns, and
// in 16 rows whose bit of `active` isn't set.
template <class C, class P>
__device__ __forceinline__ void copy_tile(uint32_t smem, const void* base, int64_t first_element, int64_t row_stride,
                                          int count, int size, int copy_bytes, uint32_t active) {
  const uint8_t* from = static_cast<const uint8_t*>(base) + first_element * C::ELEMENT_BYTES;
  const int64_t stride = row_stride * C::ELEMENT_BYTES;
  const int bytes = size * C::ELEMENT_BYTES;
  if (!C::ALL || (copy_bytes == 16 && active == ~0u)) {
    P::template copy_rows<C::THREADS>(smem, from, stride, count, bytes);
  } else {
    P::template copy_scattered<C::THREADS, C::ELEMENT_BYTES>(
        smem, copy_bytes, [&](int r) { return from + r * stride; },
        [&](int r) { return r < count && (active >> (r / 16) & 1) != 0 ? bytes : 0; });
  }
}

// Whether a query of [first_query, last_query] sees a key of the block, and which groups of 16 keys take part: all bits
// where nothing is left out.
template <class C>
__device__ __forceinline__ bool tile_takes_part(const KernelParams& p, const TileRange& range, const HeadTerms& terms,
                                                int first_query, int last_query, int first_key, uint32_t& active) {
  active = ~0u;
  if (range.begin >= range.end || range.end <= first_key || range.begin >= first_key + C::BLOCK_KV) return false;
  if constexpr (C::ALL) {
    if (terms.block_mask != nullptr) {
      active = active_groups<C::BLOCK_KV>(p, terms.block_mask, first_query, last_query, first_key);
      if (active == 0) return false;
      if (active == (1u << (C::BLOCK_KV / 16)) - 1) active = ~0u;
    }
  }
  return true;
}

}  // namespace ortflash::sm80

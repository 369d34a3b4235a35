// FlashAttention-2's forward on mma.sync: one thread block computes one tile of query rows, going through the keys in
// blocks and never storing a score.
//
//   O = 0, m = -inf, sum = 0
//   for each block of keys that a row of the tile sees:
//     S = Q K^T                          tensor cores; fp32 accumulators in registers
//     S = scores modified and masked     score_mod.cuh, block_range.cuh; not in plain kernels; and at the edges
//     P, m, sum, O = online softmax      online_softmax.cuh
//     P = P dropped and scaled           dropout.cuh; in kernels for dropout only
//     O = O + P V                        tensor cores; P goes from accumulator to operand in registers
//   output = O / sum,  lse = m + log(sum)
//
// K and V come in panels (BLOCK_KV keys by PANEL columns) through two slots of shared memory: while one panel is
// multiplied, the next is copied. Order of panels: K 0, K 1, .. of a block, then its V 0, V 1, .., then the next block.
// Each warp owns WARP_ROWS rows of the tile from start to end; warps meet only to hand panels over.
#pragma once

#include <cstdint>

#include "../block_range.cuh"
#include "../kernel_params.h"
#include "../online_softmax.cuh"
#include "../score_mod.cuh"
#include "config.cuh"
#include "dropout.cuh"
#include "epilogue.cuh"
#include "products.cuh"
#include "scores.cuh"
#include "tile_index.cuh"

namespace ortflash::sm80 {

template <class C>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) forward_kernel(const __grid_constant__ KernelParams p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t q_smem = smem_address(smem);
  const uint32_t slots_smem = q_smem + C::QUERY_SMEM;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const TileIndex tile(p);
  const RowMap<C::MAY_PACK> rows(p, tile, C::BLOCK_Q);
  const int warp_row = warp * C::WARP_ROWS;
  const int column0 = tile.value_split * C::COLUMNS;

  // --------------------------------------------------------------------------------------------- which key blocks
  const KeyRange keys(p, tile.batch);
  const int first_position = rows.first_position(0), last_position = rows.last_position(0, C::BLOCK_Q);
  const TileRange range(keys, first_position, last_position);
  const TileRange warp_range(keys, rows.first_position(warp_row), rows.last_position(warp_row, C::WARP_ROWS));
  const bool warp_has_rows = rows.valid(warp_row);
  int block = range.begin / C::BLOCK_KV;
  int block_end = range.end > range.begin ? (range.end + C::BLOCK_KV - 1) / C::BLOCK_KV : block;
  const uint8_t* block_mask = nullptr;
  if constexpr (C::ALL) {
    if (p.key_splits > 1) {
      const int share = (block_end - block + p.key_splits - 1) / p.key_splits;
      block += tile.key_split * share;
      block_end = min(block + share, block_end);
    }
    if (p.block_mask != nullptr) {
      block_mask = p.block_mask + tile.batch * p.block_mask_strides.batch + rows.first_head * p.block_mask_strides.head;
    }
  }
  constexpr uint32_t kAllGroups = (1u << (C::BLOCK_KV / 16)) - 1;
  uint32_t groups = kAllGroups, next_groups = kAllGroups;  // of 16 keys of `block` and of the next one that take part
  // The first block from `candidate` on in which a key takes part, and its groups.
  const auto next_active = [&](int candidate, uint32_t& active) {
    if constexpr (C::ALL) {
      for (; block_mask != nullptr && candidate < block_end; ++candidate) {
        active = active_groups<C::BLOCK_KV>(p, block_mask, first_position, last_position, candidate * C::BLOCK_KV);
        if (active != 0) break;
      }
    }
    return candidate;
  };
  block = next_active(block, groups);

  // ----------------------------------------------------------------------------------------------------------- copies
  const auto at = [](const void* base, int64_t element) {
    return static_cast<const uint8_t*>(base) + element * C::ELEMENT_BYTES;
  };
  const int kv_head = rows.first_head / p.group;
  const uint8_t* query = at(p.query, tile.batch * p.query_strides.batch);
  const uint8_t* key = at(p.key, tile.batch * p.key_strides.batch + kv_head * p.key_strides.head);
  const uint8_t* value = at(p.value, tile.batch * p.value_strides.batch + kv_head * p.value_strides.head + column0);

  const auto copy_query = [&](uint32_t to, int panel) {
    using P = typename C::QueryPanel;
    const int bytes = (p.head_size - panel * C::PANEL) * C::ELEMENT_BYTES;
    const int64_t column = panel * C::PANEL;
    if (C::PIECES > 1 || !C::ALL || (p.query_copy == 16 && !rows.packed())) {
      const uint8_t* from =
          at(query, rows.first_head * p.query_strides.head + rows.first_row * p.query_strides.row + column);
#pragma unroll
      for (int piece = 0; piece < C::PIECES; ++piece) {
        P::template copy_rows<C::THREADS>(to + piece * P::kBytes, at(from, piece * p.piece_columns),
                                          p.query_strides.row * C::ELEMENT_BYTES, rows.rows - rows.first_row, bytes);
      }
    } else {
      P::template copy_scattered<C::THREADS, C::ELEMENT_BYTES>(
          to, p.query_copy,
          [&](int r) {
            return at(query, rows.head(r) * p.query_strides.head + rows.position(r) * p.query_strides.row + column);
          },
          [&](int r) { return rows.valid(r) ? bytes : 0; });
    }
  };
  // Keys that no row of the tile sees, past the end or by block_mask, become zeros: 0 * what lies there could be NaN.
  const auto copy_piece = [&](uint32_t to, const uint8_t* base, int64_t stride, int size, int panel, int copy_bytes,
                              int first_key, uint32_t active) {
    using P = typename C::KeyPanel;
    const int bytes = (size - panel * C::PANEL) * C::ELEMENT_BYTES;
    const int count = range.end - first_key;
    const uint8_t* from = at(base, first_key * stride + panel * C::PANEL);
    if (!C::ALL || (copy_bytes == 16 && active == kAllGroups)) {
      P::template copy_rows<C::THREADS>(to, from, stride * C::ELEMENT_BYTES, count, bytes);
    } else {
      P::template copy_scattered<C::THREADS, C::ELEMENT_BYTES>(
          to, copy_bytes, [&](int r) { return at(from, r * stride); },
          [&](int r) { return r < count && (active >> (r / 16) & 1) != 0 ? bytes : 0; });
    }
  };
  const auto copy_rows = [&](uint32_t to, const uint8_t* base, int64_t stride, int size, int piece_columns, int panel,
                             int copy_bytes, int first_key, uint32_t active) {
#pragma unroll
    for (int piece = 0; piece < C::PIECES; ++piece) {
      copy_piece(to + piece * C::KeyPanel::kBytes, at(base, piece * piece_columns), stride, size, panel, copy_bytes,
                 first_key, active);
    }
  };
  uint32_t slot = 0;
  const auto slot_smem = [&](uint32_t s) { return slots_smem + s * C::SLOT_SMEM; };
  const auto copy_key = [&](uint32_t to_slot, int key_block, int panel, uint32_t active) {
    copy_rows(slot_smem(to_slot), key, p.key_strides.row, p.head_size, p.piece_columns, panel, p.key_copy,
              key_block * C::BLOCK_KV, active);
    if constexpr (C::STREAM_Q) copy_query(slot_smem(to_slot) + C::KeyPanel::kBytes, panel);
    cp_async_commit();
  };
  const auto copy_value = [&](uint32_t to_slot, int panel) {
    copy_rows(slot_smem(to_slot), value, p.value_strides.row, p.v_head_size - column0, p.v_piece_columns, panel,
              p.value_copy, block * C::BLOCK_KV, groups);
    cp_async_commit();
  };
  // One panel each for K and V: the first V can be under way with the first K.
  constexpr bool kFirstValueEarly = C::PANELS == 1 && !C::STREAM_Q;
  bool value_under_way = kFirstValueEarly;
  const int key_panels = C::PANELS == 1 && !C::STREAM_Q ? 1 : (p.head_size + C::PANEL - 1) / C::PANEL;
  const int value_panels = C::PANELS == 1 ? 1 : min((p.v_head_size - column0 + C::PANEL - 1) / C::PANEL, C::PANELS);
  if (block < block_end) {
    if constexpr (!C::STREAM_Q) {
      for (int panel = 0; panel < key_panels; ++panel) {
        copy_query(q_smem + panel * C::PIECES * C::QueryPanel::kBytes, panel);
      }
    }
    copy_key(slot, block, 0, groups);
    if constexpr (kFirstValueEarly) copy_value(slot ^ 1, 0);
  }

  // ----------------------------------------------------------------------------------------------------- bias and mask
  constexpr int kRows = 2 * C::M_TILES;
  BiasTile<C, C::TYPE_BYTES, kRows> bias;  // of the block that is multiplied next
  MaskTile<C> mask;
  const bool bias_ahead = p.bias != nullptr && p.bias_bytes == C::TYPE_BYTES;
  const uint8_t* bias_row[kRows];
  const uint8_t* mask_row[kRows];
  const auto load_score_tiles = [&](int key_block) {
    const int first_key = key_block * C::BLOCK_KV, lane_first = first_key + lane % 4 * 4;
    if (bias_ahead) {
      load_rows<C::ALL, C::TYPE_BYTES>(bias.words, bias_row, lane_first, p.kv_len, p.bias_vector,
                                       p.bias_strides.column);
    }
    if (p.mask != nullptr) {
      load_rows<C::ALL, 1>(mask.words, mask_row, lane_first, p.kv_len, p.mask_vector, p.mask_strides.column);
    }
  };
  // An fp32 bias beside 16-bit inputs is loaded row by row when it is added.
  const auto add_float_bias = [&](Scores<C>& s, float factor, int first_key) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      BiasTile<C, 4, 1> row;
      load_rows<true, 4>(row.words, {bias_row[i]}, first_key + lane % 4 * 4, p.kv_len, p.bias_vector,
                         p.bias_strides.column);
      row.add_to(s, factor, i);
    }
  };
  if constexpr (C::TERMS) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = rows.clamped(warp_row + lane_row(i, lane));
      const auto element = [&](const Strides& strides) {
        return tile.batch * strides.batch + rows.head(r) * strides.head + rows.position(r) * strides.row;
      };
      bias_row[i] = static_cast<const uint8_t*>(p.bias) + element(p.bias_strides) * p.bias_bytes;
      mask_row[i] = p.mask + element(p.mask_strides);
    }
    if (block < block_end && warp_has_rows) load_score_tiles(block);
  }

  // ------------------------------------------------------------------------------------------------------------- state
  float o[C::M_TILES][C::ACCUMULATORS][4] = {};
  OnlineSoftmax softmax[kRows];
  bool any_far = false;
  PhiloxKey dropout{0, 0};
  if constexpr (C::DROPOUT) dropout = dropout_key(p.dropout_seed[0], p.dropout_seed[1]);
  uint32_t q_registers[C::Q_IN_REGISTERS ? C::M_TILES : 1][C::STEPS][4];
  bool q_loaded = false;

  while (block < block_end) {
    const int first_key = block * C::BLOCK_KV;
    // A warp whose rows see nothing here only helps to copy.
    bool warp_active = warp_has_rows && first_key < warp_range.end && first_key + C::BLOCK_KV > warp_range.begin;
    if constexpr (C::TERMS) {
      if (warp_active && p.mask != nullptr && p.mask_fill == -INFINITY) warp_active = mask.any_kept();
    }

    // S = Q K^T
    Scores<C> s = {};
    for (int panel = 0; panel < key_panels; ++panel) {
      cp_async_wait<0>();  // this thread's share of the K panel (and of Q) is there
      __syncthreads();     // so are the others'; and all warps are done with the other slot, which is copied into next
      if (panel + 1 < key_panels) {
        copy_key(slot ^ 1, block, panel + 1, groups);
      } else if (!value_under_way) {
        copy_value(slot ^ 1, 0);
      }
      value_under_way = false;
      if (warp_active) {
        const uint32_t q_panel =
            C::STREAM_Q ? slot_smem(slot) + C::KeyPanel::kBytes : q_smem + panel * C::PIECES * C::QueryPanel::kBytes;
        const uint32_t q_lane = q_panel + warp_row * C::QueryPanel::kPitch + query_lane<typename C::QueryPanel>(lane);
        const uint32_t k_lane = slot_smem(slot) + key_lane<typename C::KeyPanel>(lane);
        const auto load_query = [&](int m, int step, uint32_t (&raw)[4], int piece_offset = 0) {
          ldmatrix_x4(raw, at_block(q_lane, step) + m * 16 * C::QueryPanel::kPitch + piece_offset);
        };
        if constexpr (C::PIECES > 1) {
          const auto load_piece = [&](int m, int step, int piece, uint32_t (&raw)[4]) {
            load_query(m, step, raw, piece * C::QueryPanel::kBytes);
          };
          multiply_query_key_pieces<C::PIECES, typename C::KeyPanel, C::STEPS>(s, load_piece, k_lane);
        } else if constexpr (C::Q_IN_REGISTERS) {
          if (!q_loaded) {
            q_loaded = true;
#pragma unroll
            for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
              for (int step = 0; step < C::STEPS; ++step) load_query(m, step, q_registers[m][step]);
            }
          }
          const auto kept_query = [&](int m, int step, uint32_t (&raw)[4]) {
#pragma unroll
            for (int i = 0; i < 4; ++i) raw[i] = q_registers[m][step][i];
          };
          multiply_query_key<C::MATH, typename C::KeyPanel, C::STEPS>(s, kept_query, k_lane);
        } else {
          multiply_query_key<C::MATH, typename C::KeyPanel, C::STEPS>(s, load_query, k_lane);
        }
      }
      slot ^= 1;
    }

    const int next = next_active(block + 1, next_groups);
    // The next V panel is in, the panel before is free; start the copy of the panel after it.
    const auto take_value = [&](int panel) {
      cp_async_wait<0>();  // this thread's share of the V panel is there
      __syncthreads();     // so are the others'; and all warps are done with the other slot, which is copied into next
      if (panel + 1 < value_panels) {
        copy_value(slot ^ 1, panel + 1);
      } else if (next < block_end) {
        copy_key(slot ^ 1, next, 0, next_groups);
      }
    };
    take_value(0);

    if constexpr (C::TERMS) {
      // S = softcap(scale * S) + bias, or mask_fill
      if (warp_active) {
        float factor = p.scale;  // still to be applied
        if (p.bias == nullptr || (C::ALL && p.softcap != 0.0f)) {
          scale_scores<C>(s, p);
          factor = 1.0f;
        }
        if (bias_ahead) {
          bias.add_to(s, factor, 0);
        } else if (C::ALL && C::TYPE_BYTES == 2 && p.bias != nullptr) {
          add_float_bias(s, factor, first_key);
        }
        if (p.mask != nullptr) mask.apply_to(s, p.mask_fill);
        if (block_mask != nullptr && (p.block_size % C::BLOCK_Q != 0 || p.block_size % C::BLOCK_KV != 0)) {
          exclude_blocks<C>(s, p, block_mask, rows, warp_row, first_key, lane);
        }
      }
    }

    if (warp_active) {
      // P = exp(S - m), O = O + P V. No branch between the two: the exponentials of later keys overlap the products of
      // earlier ones.
      if (!range.clean(first_key, C::BLOCK_KV)) exclude_outside<C>(s, keys, rows, warp_row, first_key, lane);
      float base[kRows];
      raise_maximum<C>(s, o, softmax, base, p.factor, any_far);
      scores_to_weights<C, !C::SUM_BY_PRODUCT>(s, softmax, base, p.factor);
      if constexpr (C::DROPOUT) drop_weights<C>(s, p, dropout, tile.batch, rows, warp_row, first_key, lane);
      multiply_weight_value<C::MATH, typename C::KeyPanel, C::PANEL / 8, C::SUM_BY_PRODUCT>(o, 0, s, slot_smem(slot),
                                                                                            lane);
    }
    slot ^= 1;
#pragma unroll
    for (int panel = 1; panel < C::PANELS; ++panel) {
      if (panel >= value_panels) break;
      take_value(panel);
      if (warp_active) {
        multiply_weight_value<C::MATH, typename C::KeyPanel, C::PANEL / 8>(o, panel * C::PANEL / 8, s, slot_smem(slot),
                                                                           lane);
      }
      slot ^= 1;
    }
    if constexpr (C::TERMS) {
      if (next < block_end && warp_has_rows) load_score_tiles(next);
    }
    block = next;
    groups = next_groups;
  }

  if constexpr (C::SUM_BY_PRODUCT) {  // each lane of a row has all of its sum; finish() adds up four parts
#pragma unroll
    for (int r = 0; r < kRows; ++r) softmax[r].row_sum = lane % 4 == 0 ? o[r / 2][C::O_TILES][r % 2 * 2] : 0.0f;
  }
  write_rows<C>(p, tile, rows, q_smem, warp_row, column0, lane, o, softmax);
}

}  // namespace ortflash::sm80

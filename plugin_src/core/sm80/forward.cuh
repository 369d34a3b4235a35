// FlashAttention-2's forward on mma.sync: one thread block computes one tile of query rows, going through the keys in
// blocks and never storing a score.
//
//   O = 0, m = -inf, sum = 0
//   for each block of keys that a row of the tile sees:
//     S = Q K^T                          tensor cores; fp32 accumulators in registers
//     S = scores modified and masked     score_mod.cuh, block_range.cuh; only in a general kernel, and at the edges
//     P, m, sum, O = online softmax      online_softmax.cuh
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
#include "math.cuh"
#include "panel.cuh"
#include "products.cuh"

namespace ortflash::sm80 {

// COLUMNS  value columns of a tile, and the most columns of Q and K unless they are streamed
// GENERAL  false: aligned rows, no bias, mask, softcap or block_mask, scale > 0; true: everything
// PANEL    columns of a panel; COLUMNS % PANEL == 0
// STREAM_Q true: Q's panels come again with K's for each block, so that any head size fits in shared memory
template <Math MATH_, int COLUMNS_, bool GENERAL_, int BLOCK_Q_, int BLOCK_KV_, int WARPS_, int PANEL_, bool STREAM_Q_,
          bool Q_IN_REGISTERS_, int MIN_BLOCKS_>
struct Config {
  static constexpr Math MATH = MATH_;
  static constexpr int COLUMNS = COLUMNS_, BLOCK_Q = BLOCK_Q_, BLOCK_KV = BLOCK_KV_, WARPS = WARPS_, PANEL = PANEL_;
  static constexpr bool GENERAL = GENERAL_, STREAM_Q = STREAM_Q_, Q_IN_REGISTERS = Q_IN_REGISTERS_;
  static constexpr int MIN_BLOCKS = MIN_BLOCKS_;

  static constexpr int THREADS = WARPS * 32;
  static constexpr int WARP_ROWS = BLOCK_Q / WARPS;
  static constexpr int M_TILES = WARP_ROWS / 16;
  static constexpr int N_TILES = BLOCK_KV / 8;
  static constexpr int O_TILES = COLUMNS / 8;
  static constexpr int ELEMENT_BYTES = kElementBytes<MATH>;
  static constexpr int PANEL_BYTES = PANEL * ELEMENT_BYTES;  // of a row
  static constexpr int STEPS = PANEL_BYTES / 32;
  static constexpr int PANELS = COLUMNS / PANEL;
  static_assert(COLUMNS % PANEL == 0 && BLOCK_Q % (16 * WARPS) == 0 && BLOCK_KV % 16 == 0 && PANEL_BYTES % 32 == 0);
  static_assert(!Q_IN_REGISTERS || PANELS == 1, "only one panel of Q is kept in registers");

  using QueryPanel = Panel<BLOCK_Q, PANEL_BYTES>;
  using KeyPanel = Panel<BLOCK_KV, PANEL_BYTES>;
  static constexpr int QUERY_SMEM = STREAM_Q ? 0 : PANELS * QueryPanel::kBytes;
  static constexpr int SLOT_SMEM = KeyPanel::kBytes + (STREAM_Q ? QueryPanel::kBytes : 0);
  static constexpr int FIXED_SMEM = QUERY_SMEM + 2 * SLOT_SMEM;  // and the bias and mask tiles after it
};

// Which piece of the whole problem a thread block computes.
//
// Tiles are ordered in sections of heads whose keys and values fit in L2 together, and inside a section from the last
// rows to the first: with a causal mask the longest tiles start first and the short ones fill the end.
struct TileIndex {
  int row_tile, pack, batch, value_split, key_split;

  __device__ __forceinline__ explicit TileIndex(const KernelParams& p) {
    unsigned index = blockIdx.x;
    key_split = index % p.key_splits;
    index /= p.key_splits;
    value_split = index % p.value_splits;
    index /= p.value_splits;
    const unsigned packs = p.num_heads / p.packed_heads;
    const unsigned section_tiles = static_cast<unsigned>(p.row_tiles) * p.heads_per_section;
    const unsigned section = index / section_tiles, in_section = index % section_tiles;
    const unsigned first_head = section * p.heads_per_section;
    const unsigned heads = min(packs * p.batch - first_head, static_cast<unsigned>(p.heads_per_section));
    row_tile = p.row_tiles - 1 - in_section / heads;
    const unsigned head = first_head + in_section % heads;
    pack = head % packs;
    batch = head / packs;
  }
};

// Rows of a tile -> (query head, position). Where q_len is short and heads share keys, the rows of `packed_heads` heads
// lie one after the other in a tile, so that keys and values are read once for all of them.
struct RowMap {
  int first_row, first_head, q_len, rows;
  bool packed;

  __device__ __forceinline__ RowMap(const KernelParams& p, const TileIndex& tile, int block_q)
      : first_row(tile.row_tile * block_q),
        first_head(tile.pack * p.packed_heads),
        q_len(p.q_len),
        rows(p.q_len * p.packed_heads),
        packed(p.packed_heads > 1) {}

  __device__ __forceinline__ bool valid(int r) const { return first_row + r < rows; }
  __device__ __forceinline__ int head(int r) const { return packed ? first_head + (first_row + r) / q_len : first_head; }
  __device__ __forceinline__ int position(int r) const {
    return packed ? (first_row + r) % q_len : first_row + r;
  }
  // The first and last positions among rows [r, r + count) of the tile.
  __device__ __forceinline__ int first_position(int r) const { return packed ? 0 : first_row + r; }
  __device__ __forceinline__ int last_position(int r, int count) const {
    return packed ? q_len - 1 : min(first_row + r + count, q_len) - 1;
  }
};

template <class C>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) forward_kernel(const __grid_constant__ KernelParams p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t q_smem = smem_address(smem);
  const uint32_t slots_smem = q_smem + C::QUERY_SMEM;
  const uint32_t bias_smem = q_smem + C::FIXED_SMEM;
  const uint32_t mask_smem = bias_smem + p.bias_rows * ScoreTile<C::BLOCK_KV>::pitch(p.bias_bytes);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;  // this lane's row within 8, and its column pair
  const TileIndex tile(p);
  const RowMap rows(p, tile, C::BLOCK_Q);
  const int kv_head = rows.first_head / p.group;
  const int warp_row = warp * C::WARP_ROWS;
  const int column0 = tile.value_split * C::COLUMNS;  // of the value columns this tile computes

  // ------------------------------------------------------------------------------------------------ key blocks to visit
  const KeyRange keys(p, tile.batch);
  const int first_position = rows.first_position(0), last_position = rows.last_position(0, C::BLOCK_Q);
  const TileRange range(keys, first_position, last_position);
  const TileRange warp_range(keys, rows.first_position(warp_row),
                             rows.last_position(warp_row, C::WARP_ROWS));
  const uint8_t* block_mask = nullptr;
  if constexpr (C::GENERAL) {
    if (p.block_mask != nullptr) {
      block_mask = p.block_mask + tile.batch * p.block_mask_strides.batch + rows.first_head * p.block_mask_strides.head;
    }
  }
  int block = range.begin / C::BLOCK_KV;
  int block_end = range.end > range.begin ? (range.end + C::BLOCK_KV - 1) / C::BLOCK_KV : block;
  if (C::GENERAL && p.key_splits > 1) {
    const int share = (block_end - block + p.key_splits - 1) / p.key_splits;
    block += tile.key_split * share;
    block_end = min(block + share, block_end);
  }
  const auto next_active = [&](int candidate) {
    if constexpr (C::GENERAL) {
      while (block_mask != nullptr && candidate < block_end &&
             !any_block_active(p, block_mask, first_position, last_position, candidate * C::BLOCK_KV,
                               min((candidate + 1) * C::BLOCK_KV, p.kv_len) - 1)) {
        ++candidate;
      }
    }
    return candidate;
  };
  block = next_active(block);

  // ----------------------------------------------------------------------------------------------------------- copies
  const auto row_of = [](const void* base, int64_t element) {
    return static_cast<const uint8_t*>(base) + element * C::ELEMENT_BYTES;
  };
  const uint8_t* query = row_of(p.query, tile.batch * p.query_strides.batch);
  const uint8_t* key = row_of(p.key, tile.batch * p.key_strides.batch + kv_head * p.key_strides.head);
  const uint8_t* value =
      row_of(p.value, tile.batch * p.value_strides.batch + kv_head * p.value_strides.head + column0);

  const auto copy = [&](auto panel_type, uint32_t to, int copy_bytes, auto row, auto valid_bytes) {
    using P = decltype(panel_type);
    if (!C::GENERAL || copy_bytes == 16) {
      P::template copy_aligned<C::THREADS>(to, row, valid_bytes);
    } else {
      P::template copy_unaligned<C::THREADS, C::ELEMENT_BYTES>(to, copy_bytes, row, valid_bytes);
    }
  };
  const auto copy_query = [&](uint32_t to, int panel) {
    const int bytes = (p.head_size - panel * C::PANEL) * C::ELEMENT_BYTES;
    copy(typename C::QueryPanel(), to, p.query_copy,
         [&](int r) {
           return row_of(query, rows.head(r) * p.query_strides.head + rows.position(r) * p.query_strides.row +
                                    panel * C::PANEL);
         },
         [&](int r) { return rows.valid(r) ? bytes : 0; });
  };
  // Rows past the last key become zeros: a weight of 0 times what lies there could be NaN.
  const auto copy_rows = [&](uint32_t to, const uint8_t* base, int64_t row_stride, int size, int panel, int copy_bytes,
                             int first_key) {
    const int bytes = (size - panel * C::PANEL) * C::ELEMENT_BYTES;
    const uint8_t* from = row_of(base, first_key * row_stride + panel * C::PANEL);
    const int count = keys.keys - first_key;
    copy(typename C::KeyPanel(), to, copy_bytes, [&](int r) { return row_of(from, r * row_stride); },
         [&](int r) { return r < count ? bytes : 0; });
  };
  const auto score_row = [&](const void* base, const Strides& strides, int element_bytes, int r) {
    const int64_t element =
        tile.batch * strides.batch + rows.head(r) * strides.head + rows.position(r) * strides.row;
    return static_cast<const uint8_t*>(base) + element * element_bytes;
  };
  const auto copy_score_tiles = [&](int first_key) {
    if (p.bias_rows > 0) {
      ScoreTile<C::BLOCK_KV>::template copy<C::THREADS>(
          bias_smem, p.bias_rows, p.bias_bytes, p.bias_copy, p.bias_strides.column, first_key, p.kv_len,
          [&](int r) { return rows.valid(r) ? score_row(p.bias, p.bias_strides, p.bias_bytes, r) : nullptr; });
    }
    if (p.mask_rows > 0) {
      ScoreTile<C::BLOCK_KV>::template copy<C::THREADS>(
          mask_smem, p.mask_rows, 1, p.mask_copy, p.mask_strides.column, first_key, p.kv_len,
          [&](int r) { return rows.valid(r) ? score_row(p.mask, p.mask_strides, 1, r) : nullptr; });
    }
  };
  uint32_t slot = 0;
  const auto slot_smem = [&](uint32_t s) { return slots_smem + s * C::SLOT_SMEM; };
  const auto copy_key = [&](uint32_t to_slot, int key_block, int panel) {
    copy_rows(slot_smem(to_slot), key, p.key_strides.row, p.head_size, panel, p.key_copy, key_block * C::BLOCK_KV);
    if constexpr (C::STREAM_Q) copy_query(slot_smem(to_slot) + C::KeyPanel::kBytes, panel);
    if constexpr (C::GENERAL) {
      if (panel == 0) copy_score_tiles(key_block * C::BLOCK_KV);
    }
    cp_async_commit();
  };
  const auto copy_value = [&](uint32_t to_slot, int panel) {
    copy_rows(slot_smem(to_slot), value, p.value_strides.row, p.v_head_size - column0, panel, p.value_copy,
              block * C::BLOCK_KV);
    cp_async_commit();
  };

  const int key_panels = C::PANELS == 1 && !C::STREAM_Q ? 1 : (p.head_size + C::PANEL - 1) / C::PANEL;
  const int value_panels = C::PANELS == 1 ? 1 : min((p.v_head_size - column0 + C::PANEL - 1) / C::PANEL, C::PANELS);
  if (block < block_end) {
    if constexpr (!C::STREAM_Q) {
      for (int panel = 0; panel < key_panels; ++panel) copy_query(q_smem + panel * C::QueryPanel::kBytes, panel);
    }
    copy_key(slot, block, 0);
  }

  // ------------------------------------------------------------------------------------------------------------- state
  constexpr bool kSubtractFirst = C::GENERAL;
  const float factor = kSubtractFirst ? kLog2e : p.scale * kLog2e;
  float o[C::M_TILES][C::O_TILES][4] = {};
  OnlineSoftmax<kSubtractFirst> softmax[C::M_TILES][2];  // rows g and g + 8 of each 16-row tile
  uint32_t q_registers[C::Q_IN_REGISTERS ? C::M_TILES : 1][C::STEPS][4];
  bool q_loaded = false;
  int bias_skew[C::M_TILES][2] = {}, mask_skew[C::M_TILES][2] = {};
  if constexpr (C::GENERAL) {
#pragma unroll
    for (int i = 0; i < C::M_TILES * 2; ++i) {
      const int r = warp_row + (i / 2) * 16 + (i % 2) * 8 + g;
      if (!rows.valid(r)) continue;
      if (p.bias_rows > 0) {
        bias_skew[i / 2][i % 2] =
            ScoreTile<C::BLOCK_KV>::skew(score_row(p.bias, p.bias_strides, p.bias_bytes, r), p.bias_copy);
      }
      if (p.mask_rows > 0) {
        mask_skew[i / 2][i % 2] = ScoreTile<C::BLOCK_KV>::skew(score_row(p.mask, p.mask_strides, 1, r), p.mask_copy);
      }
    }
  }

  while (block < block_end) {
    const int first_key = block * C::BLOCK_KV;
    // A warp whose rows see nothing here only helps to copy.
    bool warp_active = first_key < warp_range.end && first_key + C::BLOCK_KV > warp_range.begin;

    // S = Q K^T
    float s[C::M_TILES][C::N_TILES][4] = {};
    uint32_t masked[C::M_TILES] = {};  // one bit an element of s: attn_mask is False
    for (int panel = 0; panel < key_panels; ++panel) {
      cp_async_wait<0>();  // this thread's share of the K panel (and of Q, bias and mask) is there
      __syncthreads();     // so are the others'; and all warps are done with the other slot, which is copied into next
      if (panel + 1 < key_panels) {
        copy_key(slot ^ 1, block, panel + 1);
      } else {
        copy_value(slot ^ 1, 0);
      }
      if constexpr (C::GENERAL) {
        if (panel == 0 && p.mask_rows > 0 && warp_active) {
          bool any_kept = false;
#pragma unroll
          for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
            for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const int r = p.mask_rows == 1 ? 0 : warp_row + m * 16 + (i / 2) * 8 + g;
                const uint32_t from = mask_smem + r * ScoreTile<C::BLOCK_KV>::pitch(1) + mask_skew[m][i / 2] + n * 8 +
                                      2 * t + (i % 2);
                if (load_shared_u8(from) == 0) masked[m] |= 1u << (n * 4 + i);
              }
            }
            any_kept |= masked[m] != (C::N_TILES == 8 ? ~0u : (1u << (C::N_TILES * 4 % 32)) - 1);
          }
          if (p.mask_fill == -INFINITY) warp_active = __any_sync(0xffffffffu, any_kept);
        }
      }
      if (warp_active) {
        const uint32_t q_panel = (C::STREAM_Q ? slot_smem(slot) + C::KeyPanel::kBytes
                                              : q_smem + panel * C::QueryPanel::kBytes);
        const uint32_t q_lane =
            q_panel + warp_row * C::QueryPanel::kPitch + rows_then_columns<typename C::QueryPanel>(lane);
        const auto load_query = [&](int m, int step, uint32_t(&raw)[4]) {
          ldmatrix_x4(raw, at_block(q_lane, step) + m * 16 * C::QueryPanel::kPitch);
        };
        const uint32_t k_lane = slot_smem(slot) + columns_then_rows<typename C::KeyPanel>(lane);
        if constexpr (C::Q_IN_REGISTERS) {
          if (!q_loaded) {
            q_loaded = true;
#pragma unroll
            for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
              for (int step = 0; step < C::STEPS; ++step) load_query(m, step, q_registers[m][step]);
            }
          }
          multiply_query_key<C::MATH, typename C::KeyPanel, C::STEPS>(
              s,
              [&](int m, int step, uint32_t(&raw)[4]) {
#pragma unroll
                for (int i = 0; i < 4; ++i) raw[i] = q_registers[m][step][i];
              },
              k_lane);
        } else {
          multiply_query_key<C::MATH, typename C::KeyPanel, C::STEPS>(s, load_query, k_lane);
        }
      }
      slot ^= 1;
    }

    const int next = next_active(block + 1);
    // The next panel is in, the one before is free; start the copy after it.
    const auto take_value = [&](int panel) {
      cp_async_wait<0>();  // this thread's share of the V panel is there
      __syncthreads();     // so are the others'; all warps are done with the other slot and with bias and mask
      if (panel + 1 < value_panels) {
        copy_value(slot ^ 1, panel + 1);
      } else if (next < block_end) {
        copy_key(slot ^ 1, next, 0);
      }
    };
    if constexpr (!C::GENERAL) take_value(0);  // a general kernel still has to read its bias tile

    if (warp_active) {
      if constexpr (C::GENERAL) {
        // S = softcap(scale * S) + bias, or mask_fill
        constexpr bool kAccurate = C::MATH == Math::kTf32x3;
#pragma unroll
        for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
          for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) s[m][n][i] *= p.scale;
          }
        }
        if (p.softcap != 0.0f) {
#pragma unroll
          for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
            for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
              for (int i = 0; i < 4; ++i) s[m][n][i] = softcap<kAccurate>(s[m][n][i], p.softcap, p.softcap_inverse);
            }
          }
        }
        if (p.bias_rows > 0) {
          const int pitch = ScoreTile<C::BLOCK_KV>::pitch(p.bias_bytes);
#pragma unroll
          for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int r = p.bias_rows == 1 ? 0 : warp_row + m * 16 + half * 8 + g;
              const uint32_t from = bias_smem + r * pitch + bias_skew[m][half] + 2 * t * p.bias_bytes;
              if (p.bias_bytes == 2) {
#pragma unroll
                for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
                  for (int i = 0; i < 2; ++i) {
                    const uint32_t bits = load_shared_u16(from + (n * 8 + i) * 2);
                    s[m][n][half * 2 + i] += C::MATH == Math::kFloat16 ? f16_to_float(bits) : bf16_to_float(bits);
                  }
                }
              } else {
#pragma unroll
                for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
                  for (int i = 0; i < 2; ++i) {
                    s[m][n][half * 2 + i] += __uint_as_float(load_shared_u32(from + (n * 8 + i) * 4));
                  }
                }
              }
            }
          }
        }
        if (p.mask_rows > 0) {
#pragma unroll
          for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
            for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                if (masked[m] >> (n * 4 + i) & 1) s[m][n][i] = p.mask_fill;
              }
            }
          }
        }
        if (block_mask != nullptr && (p.block_size < C::BLOCK_KV || p.block_size < C::BLOCK_Q || rows.packed ||
                                      p.block_size % C::BLOCK_Q != 0)) {
#pragma unroll
          for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
            for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                const int r = warp_row + m * 16 + half * 8 + g;
                const int j = first_key + n * 8;  // 8 keys lie in one block: block_size is a multiple of 16
                if (rows.valid(r) && j < p.kv_len &&
                    block_mask[(rows.head(r) - rows.first_head) * p.block_mask_strides.head +
                               rows.position(r) / p.block_size * p.block_mask_strides.row +
                               j / p.block_size * p.block_mask_strides.column] == 0) {
                  s[m][n][half * 2] = s[m][n][half * 2 + 1] = -INFINITY;
                }
              }
            }
          }
        }
      }

      // S = -inf outside [lower, upper) of each row
      if (!range.clean(first_key, C::BLOCK_KV)) {
#pragma unroll
        for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int position = rows.position(warp_row + m * 16 + half * 8 + g);
            const int lower = keys.lower(position);
            const unsigned count = max(keys.upper(position) - lower, 0);
            const int first = first_key + 2 * t - lower;
#pragma unroll
            for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                if (static_cast<unsigned>(first + n * 8 + i) >= count) s[m][n][half * 2 + i] = -INFINITY;
              }
            }
          }
        }
      }

      // P = exp(S - m), in place; O and sum follow m
#pragma unroll
      for (int m = 0; m < C::M_TILES; ++m) {
        float rescale[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          auto& state = softmax[m][half];
          float block_max = -INFINITY;
#pragma unroll
          for (int n = 0; n < C::N_TILES; ++n) {
            block_max = fmaxf(block_max, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
          }
          rescale[half] = state.raise_max(max_across_row_lanes(block_max), factor);
          const float base = state.base(), scaled_base = base * factor;
          float sum = 0.0f;
#pragma unroll
          for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
            for (int i = half * 2; i < half * 2 + 2; ++i) {
              s[m][n][i] = state.weight(s[m][n][i], base, scaled_base, factor);
              sum += s[m][n][i];
            }
          }
          state.row_sum += sum;
        }
        if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
          for (int n = 0; n < C::O_TILES; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[m][n][i] *= rescale[i / 2];
          }
        }
      }
    }

    // O = O + P V
    if constexpr (C::GENERAL) take_value(0);
    [&]<int... PANEL_INDEX>(std::integer_sequence<int, PANEL_INDEX...>) {
      (
          [&] {
            if (PANEL_INDEX >= value_panels) return;
            if (PANEL_INDEX > 0) take_value(PANEL_INDEX);
            if (warp_active) {
              multiply_weight_value<C::MATH, typename C::KeyPanel, PANEL_INDEX * C::PANEL / 8, C::PANEL / 8>(
                  o, s, slot_smem(slot), lane);
            }
            slot ^= 1;
          }(),
          ...);
    }(std::make_integer_sequence<int, C::PANELS>());
    block = next;
  }

  // output = O / sum, lse = m + log(sum)
#pragma unroll
  for (int m = 0; m < C::M_TILES; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp_row + m * 16 + half * 8 + g;
      const int head = rows.head(r), position = rows.position(r);
      const bool split = C::GENERAL && p.partial_output != nullptr;
      const float sink = p.sinks != nullptr && !split && rows.valid(r) ? p.sinks[head * p.sinks_stride] : -INFINITY;
      const RowResult result = softmax[m][half].finish(factor, sink);
      if (!rows.valid(r)) continue;
      const int64_t row_index = (static_cast<int64_t>(tile.batch) * p.num_heads + head) * p.q_len + position;
      const int64_t all_rows = static_cast<int64_t>(p.batch) * p.num_heads * p.q_len;
      if (t == 0 && column0 == 0) {
        if (split) {
          p.partial_lse[tile.key_split * all_rows + row_index] = result.lse;
        } else if (p.lse != nullptr) {
          p.lse[row_index] = result.lse;
        }
      }
#pragma unroll
      for (int n = 0; n < C::O_TILES; ++n) {
        const int column = column0 + n * 8 + 2 * t;
        const float low = o[m][n][half * 2] * result.output_factor;
        const float high = o[m][n][half * 2 + 1] * result.output_factor;
        const int left = p.v_head_size - column;
        if (left <= 0) continue;
        if (split) {
          float* to = p.partial_output + (tile.key_split * all_rows + row_index) * p.v_head_size + column;
          to[0] = low;
          if (left > 1) to[1] = high;
          continue;
        }
        uint8_t* to = static_cast<uint8_t*>(p.output) +
                      (tile.batch * p.output_strides.batch + head * p.output_strides.head +
                       position * p.output_strides.row + column) *
                          C::ELEMENT_BYTES;
        if constexpr (C::ELEMENT_BYTES == 2) {
          const uint32_t pair = pack_pair<C::MATH>(low, high);
          if (p.output_pairs && left > 1) {
            *reinterpret_cast<uint32_t*>(to) = pair;
          } else {
            reinterpret_cast<uint16_t*>(to)[0] = static_cast<uint16_t>(pair);
            if (left > 1) reinterpret_cast<uint16_t*>(to)[1] = static_cast<uint16_t>(pair >> 16);
          }
        } else {
          if (p.output_pairs && left > 1) {
            *reinterpret_cast<float2*>(to) = make_float2(low, high);
          } else {
            reinterpret_cast<float*>(to)[0] = low;
            if (left > 1) reinterpret_cast<float*>(to)[1] = high;
          }
        }
      }
    }
  }
}

}  // namespace ortflash::sm80

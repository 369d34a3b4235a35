// dK and dV of a tile of keys, or dQ of a tile of queries, by one thread block that walks over the tiles of the other
// side and recomputes their weights:
//
//   for each tile of the others that takes part:
//     S = Q K^T, dP = dO V^T            tensor cores
//     P = exp(S - lse), dX              backward_tile.cuh
//     dV += P^T dO, dK += dX^T Q        or dQ += dX K; tensor cores, operands from accumulators
//
// Nothing is added by atomics, so every run gives the same bits; S and dP are computed twice for that, seven products
// instead of five. The query heads of a key/value head are walked over by the same thread block.
#pragma once

#include <type_traits>

#include "backward_tile.cuh"

namespace ortflash::sm80 {

// rows of `view` [first_row, row_count) += the warp's 16 rows of a gradient, times `factor`.
template <class C>
__device__ __forceinline__ void store_gradient(const GradientRows& view, int batch, int head, int first_row,
                                               int row_count, int first_column, int column_count, float factor,
                                               const float (&acc)[1][C::CHUNK / 8][4], int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + lane / 4 + 8 * r;
    if (row >= row_count) continue;
    uint8_t* to = static_cast<uint8_t*>(view.data) +
                  (batch * view.strides.batch + head * view.strides.head + row * view.strides.row) * C::ELEMENT_BYTES;
#pragma unroll
    for (int n = 0; n < C::CHUNK / 8; ++n) {
      const int column = first_column + n * 8 + lane % 4 * 2;
      if (column >= column_count) continue;
      const bool two = column + 1 < column_count;
      const float low = acc[0][n][2 * r] * factor, high = acc[0][n][2 * r + 1] * factor;
      if constexpr (C::ELEMENT_BYTES == 2) {
        const uint32_t both = pack_pair<C::MATH>(low, high);
        if (two && view.by_pair) {
          reinterpret_cast<uint32_t*>(to)[column / 2] = both;
        } else {
          reinterpret_cast<uint16_t*>(to)[column] = static_cast<uint16_t>(both);
          if (two) reinterpret_cast<uint16_t*>(to)[column + 1] = static_cast<uint16_t>(both >> 16);
        }
      } else {
        reinterpret_cast<float*>(to)[column] = low;
        if (two) reinterpret_cast<float*>(to)[column + 1] = high;
      }
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS)
    backward_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const KernelParams& p = params.forward;
  const uint32_t own1 = smem_address(smem), own2 = own1 + C::OwnPanel::kBytes;
  const uint32_t other1 = own2 + C::OwnPanel::kBytes, other2 = other1 + C::OtherPanel::kBytes;
  float* statistics = reinterpret_cast<float*>(smem + 2 * (C::OwnPanel::kBytes + C::OtherPanel::kBytes));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  // ---------------------------------------------------------------------------------------------------- which tile
  constexpr int kChunks = C::COLUMNS / C::CHUNK;
  const int own_tiles = C::KEYS_OWN ? params.key_tiles : params.query_tiles;
  const int own_heads = C::KEYS_OWN ? p.num_heads / p.group : p.num_heads;
  unsigned index = blockIdx.x;
  const int chunk = index % kChunks;
  index /= kChunks;
  int own_tile = index % own_tiles;
  index /= own_tiles;
  // With a causal mask the first keys and the last queries have the most work: they start first.
  if (!C::KEYS_OWN) own_tile = own_tiles - 1 - own_tile;
  const int own_head = index % own_heads, batch = index / own_heads;
  const int first_own = own_tile * C::BLOCK_OWN;
  const KeyRange keys(p, batch);
  const int kv_head = C::KEYS_OWN ? own_head : own_head / p.group;

  const DropoutMask dropout(params);

  // -------------------------------------------------------------------------------------------------------- copies
  const auto copy_queries = [&](uint32_t q_smem, uint32_t do_smem, int head, int first) {
    using P = std::conditional_t<C::KEYS_OWN, typename C::OtherPanel, typename C::OwnPanel>;
    const auto element = [&](const Strides& s) { return batch * s.batch + head * s.head + first * s.row; };
    copy_tile<C, P>(q_smem, p.query, element(p.query_strides), p.query_strides.row, p.q_len - first, p.head_size,
                    p.query_copy, ~0u);
    copy_tile<C, P>(do_smem, params.d_output, element(params.d_output_strides), params.d_output_strides.row,
                    p.q_len - first, p.v_head_size, params.d_output_copy, ~0u);
  };
  const auto copy_keys = [&](uint32_t k_smem, uint32_t v_smem, int first, uint32_t active) {
    using P = std::conditional_t<C::KEYS_OWN, typename C::OwnPanel, typename C::OtherPanel>;
    const auto element = [&](const Strides& s) { return batch * s.batch + kv_head * s.head + first * s.row; };
    copy_tile<C, P>(k_smem, p.key, element(p.key_strides), p.key_strides.row, keys.keys - first, p.head_size,
                    p.key_copy, active);
    copy_tile<C, P>(v_smem, p.value, element(p.value_strides), p.value_strides.row, keys.keys - first, p.v_head_size,
                    p.value_copy, active);
  };

  // --------------------------------------------------------------------------------------------------------- state
  float acc1[1][C::CHUNK / 8][4] = {};                    // dK or dQ
  float acc2[1][C::KEYS_OWN ? C::CHUNK / 8 : 1][4] = {};  // dV
  RowState own_rows[2] = {kNoRow, kNoRow};
  if constexpr (C::KEYS_OWN) {
    copy_keys(own1, own2, first_own, ~0u);
  } else {
    copy_queries(own1, own2, own_head, first_own);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = first_own + warp * 16 + lane / 4 + 8 * r;
      const int64_t row = (static_cast<int64_t>(batch) * p.num_heads + own_head) * p.q_len + query;
      if (query < p.q_len) own_rows[r] = load_row(params.rows, row);
    }
  }

  // ---------------------------------------------------------------------------------------------------------- walk
  const int other_tiles = C::KEYS_OWN ? params.query_tiles : params.key_tiles;
  const int first_head = C::KEYS_OWN ? kv_head * p.group : own_head;
  const int heads = C::KEYS_OWN ? p.group : 1;
  for (int head = first_head; head < first_head + heads; ++head) {
    const HeadTerms terms(p, batch, head);
    for (int other_tile = 0; other_tile < other_tiles; ++other_tile) {
      const int first_other = other_tile * C::BLOCK_OTHER;
      const int first_query = C::KEYS_OWN ? first_other : first_own, first_key = C::KEYS_OWN ? first_own : first_other;
      const int last_query = min(first_query + C::BLOCK_Q, p.q_len) - 1;
      const TileRange range(keys, first_query, last_query);
      uint32_t active;
      if (!tile_takes_part<C>(p, range, terms, first_query, last_query, first_key, active)) continue;

      __syncthreads();  // all warps are done with the others that lie there
      if constexpr (C::KEYS_OWN) {
        copy_queries(other1, other2, head, first_other);
        for (int i = threadIdx.x; i < C::BLOCK_OTHER; i += C::THREADS) {
          const int64_t row = (static_cast<int64_t>(batch) * p.num_heads + head) * p.q_len + first_other + i;
          const RowState state = first_other + i < p.q_len ? load_row(params.rows, row) : kNoRow;
          statistics[i] = state.lse;
          statistics[C::BLOCK_OTHER + i] = state.correction;
          statistics[2 * C::BLOCK_OTHER + i] = state.delta;
        }
      } else {
        copy_keys(other1, other2, first_other, active);
      }
      cp_async_commit();
      cp_async_wait<0>();  // this thread's share has come
      __syncthreads();     // so have the others'

      BackwardScores<C> s = {}, dp = {};
      multiply_own_other<C>(s, own1, other1, warp * 16, lane);
      multiply_own_other<C>(dp, own2, other2, warp * 16, lane);
      scores_to_gradients<C>(s, dp, params, keys, terms, dropout, first_own + warp * 16, first_other, statistics,
                             own_rows, range.clean(first_key, C::BLOCK_KV), lane);
      const uint32_t column = chunk * C::CHUNK * C::ELEMENT_BYTES;
      if constexpr (C::KEYS_OWN) {
        multiply_weight_value<C::MATH, typename C::OtherPanel, C::CHUNK / 8>(acc2, 0, s, other2 + column, lane);
      }
      multiply_weight_value<C::MATH, typename C::OtherPanel, C::CHUNK / 8>(acc1, 0, dp, other1 + column, lane);
    }
  }
  cp_async_wait<0>();  // of own rows that nobody needed

  const int warp_row = first_own + warp * 16, column = chunk * C::CHUNK;
  if constexpr (C::KEYS_OWN) {
    store_gradient<C>(params.d_key, batch, own_head, warp_row, p.kv_len, column, p.head_size, p.scale, acc1, lane);
    store_gradient<C>(params.d_value, batch, own_head, warp_row, p.kv_len, column, p.v_head_size, 1.0f, acc2, lane);
  } else {
    store_gradient<C>(params.d_query, batch, own_head, warp_row, p.q_len, column, p.head_size, p.scale, acc1, lane);
  }
}

}  // namespace ortflash::sm80

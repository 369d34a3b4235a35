// The gradient of attn_bias: dS, summed over the axes along which the bias is broadcast. One thread block computes one
// tile of the gradient, walks over everything that is summed into it and recomputes the scores there, so that nothing
// is added by atomics and no S x T tensor exists beside the gradient itself.
#pragma once

#include "backward_tile.cuh"

namespace ortflash::sm80 {

// Which of an axis' indices, in steps of `step`, belong to one tile of the gradient: its own, or all of them.
struct BiasAxis {
  int begin, end, step;

  __device__ __forceinline__ BiasAxis(unsigned& index, bool broadcast, int count, int step) : step(step) {
    if (broadcast) {
      begin = 0;
      end = count;
    } else {
      const int tiles = (count + step - 1) / step;
      begin = static_cast<int>(index % tiles) * step;
      end = begin + 1;
      index /= tiles;
    }
  }
};

__device__ __forceinline__ void store_bias_gradient(const BackwardParams& params, Math math, int batch, int head,
                                                    int query, int key, float value) {
  const Strides& s = params.d_bias_strides;
  const int64_t element = batch * s.batch + head * s.head + query * s.row + key * s.column;
  if (params.forward.bias_bytes == 4) {
    static_cast<float*>(params.d_bias)[element] = value;
  } else {
    const uint32_t bits = math == Math::kBFloat16 ? pack_bf16x2(value, 0.0f) : pack_f16x2(value, 0.0f);
    static_cast<uint16_t*>(params.d_bias)[element] = static_cast<uint16_t>(bits);
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS)
    bias_gradient_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const KernelParams& p = params.forward;
  const uint32_t own1 = smem_address(smem), own2 = own1 + C::OwnPanel::kBytes;
  const uint32_t other1 = own2 + C::OwnPanel::kBytes, other2 = other1 + C::OtherPanel::kBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  unsigned index = blockIdx.x;
  const Strides& broadcast = p.bias_strides;
  const BiasAxis key_axis(index, broadcast.column == 0, p.kv_len, C::BLOCK_OTHER);
  const BiasAxis query_axis(index, broadcast.row == 0, p.q_len, C::BLOCK_OWN);
  const BiasAxis head_axis(index, broadcast.head == 0, p.num_heads, 1);
  const BiasAxis batch_axis(index, broadcast.batch == 0, p.batch, 1);

  const DropoutMask dropout(params);
  float sum[C::N_TILES][4] = {};
  for (int batch = batch_axis.begin; batch < batch_axis.end; ++batch) {
    const KeyRange keys(p, batch);
    for (int head = head_axis.begin; head < head_axis.end; ++head) {
      const HeadTerms terms(p, batch, head);
      for (int first_query = query_axis.begin; first_query < query_axis.end; first_query += C::BLOCK_OWN) {
        RowState own_rows[2] = {kNoRow, kNoRow};
        for (int r = 0; r < 2; ++r) {
          const int query = first_query + warp * 16 + lane / 4 + 8 * r;
          const int64_t row = (static_cast<int64_t>(batch) * p.num_heads + head) * p.q_len + query;
          if (query < p.q_len) own_rows[r] = load_row(params.rows, row);
        }
        const int last_query = min(first_query + C::BLOCK_OWN, p.q_len) - 1;
        const TileRange range(keys, first_query, last_query);
        bool queries_there = false;
        for (int first_key = key_axis.begin; first_key < key_axis.end; first_key += C::BLOCK_OTHER) {
          uint32_t active;
          if (!tile_takes_part<C>(p, range, terms, first_query, last_query, first_key, active)) continue;
          __syncthreads();  // all warps are done with what lies there
          const auto copy = [&](auto panel, uint32_t to, const void* base, const Strides& s, int at_head, int first,
                                int count, int size, int copy_bytes, uint32_t groups) {
            copy_tile<C, decltype(panel)>(to, base, batch * s.batch + at_head * s.head + first * s.row, s.row,
                                          count - first, size, copy_bytes, groups);
          };
          if (!queries_there) {
            using P = typename C::OwnPanel;
            copy(P(), own1, p.query, p.query_strides, head, first_query, p.q_len, p.head_size, p.query_copy, ~0u);
            copy(P(), own2, params.d_output, params.d_output_strides, head, first_query, p.q_len, p.v_head_size,
                 params.d_output_copy, ~0u);
            queries_there = true;
          }
          using P = typename C::OtherPanel;
          const int kv_head = head / p.group;
          copy(P(), other1, p.key, p.key_strides, kv_head, first_key, keys.keys, p.head_size, p.key_copy, active);
          copy(P(), other2, p.value, p.value_strides, kv_head, first_key, keys.keys, p.v_head_size, p.value_copy,
               active);
          cp_async_commit();
          cp_async_wait<0>();  // this thread's share has come
          __syncthreads();     // so have the others'

          BackwardScores<C> s = {}, dp = {};
          multiply_own_other<C>(s, own1, other1, warp * 16, lane);
          multiply_own_other<C>(dp, own2, other2, warp * 16, lane);
          scores_to_gradients<C>(s, dp, params, keys, terms, dropout, first_query + warp * 16, first_key, nullptr,
                                 own_rows, range.clean(first_key, C::BLOCK_KV), lane);
#pragma unroll
          for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][i] += dp[0][n][i];
          }
        }
      }
    }
  }

  // Through shared memory, where the sums over rows and columns are simple.
  __syncthreads();  // all warps are done with the tiles
  float* tile = reinterpret_cast<float*>(smem);
#pragma unroll
  for (int n = 0; n < C::N_TILES; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + lane / 4 + i / 2 * 8, column = n / 2 * 16 + lane % 4 * 4 + n % 2 * 2 + i % 2;
      tile[row * C::BLOCK_OTHER + column] = sum[n][i];
    }
  }
  __syncthreads();  // the tile is complete
  const bool one_row = broadcast.row == 0, one_column = broadcast.column == 0;
  const int rows = one_row ? 1 : min(C::BLOCK_OWN, p.q_len - query_axis.begin);
  const int columns = one_column ? 1 : min(C::BLOCK_OTHER, p.kv_len - key_axis.begin);
  for (int i = threadIdx.x; i < rows * columns; i += C::THREADS) {
    const int row = i / columns, column = i % columns;
    float value = 0.0f;
    for (int r = row; r < (one_row ? C::BLOCK_OWN : row + 1); ++r) {
      for (int c = column; c < (one_column ? C::BLOCK_OTHER : column + 1); ++c) value += tile[r * C::BLOCK_OTHER + c];
    }
    store_bias_gradient(params, C::MATH, batch_axis.begin, head_axis.begin, query_axis.begin + row,
                        key_axis.begin + column, value);
  }
}

}  // namespace ortflash::sm80

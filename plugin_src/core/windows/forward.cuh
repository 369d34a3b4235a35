// Attention of very many small windows: tens of thousands of problems of up to 64 queries and keys, where what counts
// is that no instruction and no wait is wasted between reading Q, K and V and writing the output.
//
//   a thread block copies its head's bias to shared memory, where all windows share it
//   each warp, for every window that it gets, on its own:
//     copy Q, K and V to shared memory
//     for each 16 rows:
//       S = softcap(scale Q K^T) + bias, masked     P = softmax(S), at once: all keys are there     O = P V
//
// A thread block has one head and some of the batch. Neighbouring blocks have neighbouring heads, so that what is read
// at the same time lies side by side.
#pragma once

#include <cstdint>

#include "../block_range.cuh"
#include "../decode/copy_rows.cuh"
#include "../decode/score_terms.cuh"
#include "../kernel_params.h"
#include "../online_softmax.cuh"
#include "../sm80/products.cuh"
#include "../sm80/scores.cuh"
#include "config.cuh"
#include "staged_bias.cuh"

namespace ortflash::windows {

// 16 rows of one head, from `first`.
struct RowTile {
  int head, first, q_len;

  __device__ __forceinline__ int position(int row) const { return first + row; }
  __device__ __forceinline__ int64_t element(const Strides& strides, int row) const {
    return head * strides.head + min(first + row, q_len - 1) * strides.row;
  }
};

// Starts the copies of one window to a stage.
template <class C>
__device__ __forceinline__ void copy_window(const KernelParams& p, int batch, int head, uint32_t stage) {
  const int keys = KeyRange(p, batch).keys, kv_head = head / p.group;
  const auto at = [&](const void* base, const Strides& strides, int h) {
    return static_cast<const uint16_t*>(base) + batch * strides.batch + h * strides.head;
  };
  decode::copy_rows<typename C::KeyPanel>(stage, at(p.key, p.key_strides, kv_head), p.key_strides.row, keys,
                                          p.head_size, p.key_copy);
  decode::copy_rows<typename C::KeyPanel>(stage + C::VALUE_AT, at(p.value, p.value_strides, kv_head),
                                          p.value_strides.row, keys, p.v_head_size, p.value_copy);
  decode::copy_rows<typename C::QueryPanel>(stage + C::QUERY_AT, at(p.query, p.query_strides, head),
                                            p.query_strides.row, p.q_len, p.head_size, p.query_copy);
}

// The tile's O to the output, by way of its rows of Q, which nobody needs any more: 16 bytes to a lane, whole rows.
template <class C>
__device__ __forceinline__ void store_output(const KernelParams& p, int batch, const RowTile& tile,
                                             const float (&o)[1][C::O_TILES][4], const float (&factor)[2],
                                             uint32_t q_panel, int lane) {
  using P = typename C::QueryPanel;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = tile.first + half * 8 + lane / 4;
#pragma unroll
    for (int n = 0; n < C::O_TILES; ++n) {
      sm80::store_shared_u32(
          q_panel + P::piece_offset(row, n) + lane % 4 * 4,
          sm80::pack_pair<C::MATH>(o[0][n][half * 2] * factor[half], o[0][n][half * 2 + 1] * factor[half]));
    }
  }
  __syncwarp();  // all of O is there
  uint16_t* const output =
      static_cast<uint16_t*>(p.output) + batch * p.output_strides.batch + tile.head * p.output_strides.head;
  constexpr int kPieces = C::COLUMNS / 8;
#pragma unroll
  for (int i = lane; i < 16 * kPieces; i += 32) {
    const int row = tile.first + i / kPieces, column = i % kPieces * 8;
    if (row >= p.q_len || column >= p.v_head_size) continue;
    const uint4 piece = sm80::load_shared_u128(q_panel + P::piece_offset(row, i % kPieces));
    uint16_t* const to = output + row * p.output_strides.row + column;
    if (p.output_store == 16 && column + 8 <= p.v_head_size) {
      *reinterpret_cast<uint4*>(to) = piece;
    } else {
      const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (column + j < p.v_head_size) to[j] = static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16));
      }
    }
  }
}

// One window whose Q, K and V are in `stage`. bias: where the head's is staged, if it is.
template <class C>
__device__ __forceinline__ void attend(const KernelParams& p, int batch, int head, uint32_t stage, uint32_t bias,
                                       bool staged) {
  const int lane = threadIdx.x;
  const KeyRange keys(p, batch);
  const uint32_t k_lane = stage + sm80::key_lane<typename C::KeyPanel>(lane);
  const uint32_t q_panel = stage + C::QUERY_AT, q_lane = q_panel + sm80::query_lane<typename C::QueryPanel>(lane);
  const float sink = p.sinks != nullptr ? p.sinks[static_cast<int64_t>(head) * p.sinks_stride] : -INFINITY;

#pragma unroll 1
  for (RowTile tile{head, 0, p.q_len}; tile.first < p.q_len; tile.first += 16) {
    decode::ScoreTerms<C> terms(p, tile, batch, lane);
    const int lane_key = lane % 4 * 4;
    terms.load(p, lane_key, /*with_bias=*/!staged);

    sm80::Scores<C> s = {};
    const auto load_query = [&](int, int step, uint32_t (&raw)[4]) {
      sm80::ldmatrix_x4(raw, sm80::at_block(q_lane, step) + tile.first * C::QueryPanel::kPitch);
    };
    sm80::multiply_query_key<C::MATH, typename C::KeyPanel, C::STEPS>(s, load_query, k_lane);
    if (staged) load_staged<C>(terms.bias.words, bias, tile.first + lane / 4, lane);
    terms.apply(s, p, lane_key);
    if (!TileRange(keys, tile.first, min(tile.first + 16, p.q_len) - 1).clean(0, C::KEYS)) {
      decode::exclude_outside<C>(s, keys, tile, 0, lane);
    }

    float o[1][C::O_TILES][4] = {};
    OnlineSoftmax softmax[2];
    float base[2], factor[2];
    bool any_far = false;
    sm80::raise_maximum<C>(s, o, softmax, base, p.factor, any_far);
    sm80::scores_to_weights<C>(s, softmax, base, p.factor);
    sm80::multiply_weight_value<C::MATH, typename C::KeyPanel, C::O_TILES>(o, 0, s, stage + C::VALUE_AT, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowResult result = softmax[half].finish(p.to_natural, sink);
      factor[half] = result.output_factor;
      const int row = tile.first + half * 8 + lane / 4;
      if (p.lse != nullptr && lane % 4 == 0 && row < p.q_len) {
        p.lse[(static_cast<int64_t>(batch) * p.num_heads + head) * p.q_len + row] = result.lse;
      }
    }
    __syncwarp();  // all lanes have read their Q
    store_output<C>(p, batch, tile, o, factor, q_panel, lane);
  }
}

// Thread block (32, WARPS); the grid is heads by parts of the batch, heads fastest.
template <class C>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) forward_kernel(const __grid_constant__ KernelParams p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t bias = sm80::smem_address(smem), window = bias + C::BIAS_SMEM + threadIdx.y * C::WINDOW_SMEM;
  const int head = blockIdx.x % p.num_heads, step = gridDim.x / p.num_heads * C::WARPS;
  const bool staged = is_shared_bias(p);
  if (staged) {
    stage_bias<C>(p, head, bias);
    __syncthreads();  // all of the bias is there
  }
  for (int batch = blockIdx.x / p.num_heads * C::WARPS + threadIdx.y; batch < p.batch; batch += step) {
    __syncwarp();  // all lanes are done with the window before
    copy_window<C>(p, batch, head, window);
    sm80::cp_async_commit();
    sm80::cp_async_wait<0>();  // this lane's share is there
    __syncwarp();              // so are the others'
    attend<C>(p, batch, head, window, bias, staged);
  }
}

}  // namespace ortflash::windows

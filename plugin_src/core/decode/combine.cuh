// Puts the parts of each row together whose keys lie in more than one slice (partial.cuh).
#pragma once

#include <cstdint>

#include "config.cuh"
#include "dependent_launch.cuh"
#include "key_slices.cuh"
#include "params.h"
#include "partial.cuh"
#include "rows.cuh"

namespace ortflash::decode {

// The parts of one batch element's keys: they lie in slices [first_slice, first_slice + count).
struct Parts {
  int first_slice;
  int count;

  template <int UNIT_KEYS>
  __device__ __forceinline__ Parts(const KeySlices<UNIT_KEYS>& slices, int batch)
      : Parts(slices, slices.before(batch), slices.units(batch)) {}
  template <int UNIT_KEYS>
  __device__ __forceinline__ Parts(const KeySlices<UNIT_KEYS>& slices, int first_unit, int units)
      : first_slice(slices.slice_of(first_unit)), count(slices.slice_of(first_unit + units - 1) - first_slice + 1) {}
};

// Adds up the parts of rows [first, end) of a tile and writes their output. All WARPS warps of the thread block call it
// together, once. As many of them as there are for a row share its parts: the first of them takes the first part, and
// so on, and their sums meet in `sums`.
template <class C, int WARPS>
__device__ __forceinline__ void combine_rows(const KernelParams& p, const Rows& rows, int first, int end, int batch,
                                             int kv_head, const Parts& parts, float4 (*sums)[C::COLUMNS / 4]) {
  constexpr int kPieces = (C::COLUMNS + 127) / 128;  // of four columns, to a lane
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int sharing = max(WARPS / (end - first), 1), share = warp % sharing;
  const int pitch = partial_pitch(p.v_head_size);

  for (int pass = first; pass < end; pass += WARPS / sharing) {
    const int row = pass + warp / sharing;
    const bool active = row < end && warp / sharing < WARPS / sharing;
    float top = -INFINITY, total = 0.0f;
    float4 sum[kPieces] = {};
    if (active) {
      const auto part_row = [&](int part) {
        return partial_row(p, parts.first_slice + part, kv_head, part == 0, rows.first_row + row);
      };
      const float sink = sink_of(p, rows.head(row));
      top = sink;
      for (int part = lane; part < parts.count; part += 32)
        top = fmaxf(top, __ldcg(&p.partial_state[part_row(part)]).x);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
      for (int part = lane; part < parts.count; part += 32) {
        const float2 state = __ldcg(&p.partial_state[part_row(part)]);
        total += partial_weight(state.x, top) * state.y;
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
      total += partial_weight(sink, top);

#pragma unroll(4 / kPieces)
      for (int part = share; part < parts.count; part += sharing) {
        const int64_t from = part_row(part);
        const float weight = partial_weight(__ldcg(&p.partial_state[from]).x, top);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const int column = i * 128 + lane * 4;
          if (column >= pitch) continue;
          const float4 o = __ldcg(reinterpret_cast<const float4*>(p.partial_output + from * pitch + column));
          sum[i].x += weight * o.x;
          sum[i].y += weight * o.y;
          sum[i].z += weight * o.z;
          sum[i].w += weight * o.w;
        }
      }
    }
    if (sharing > 1) {  // then one pass is all
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (i * 32 + lane < C::COLUMNS / 4) sums[warp][i * 32 + lane] = sum[i];
      }
      __syncthreads();  // all warps' sums are there
      if (!active || share != 0) continue;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (i * 32 + lane >= C::COLUMNS / 4) continue;
        for (int other = 1; other < sharing; ++other) {
          const float4 o = sums[warp + other][i * 32 + lane];
          sum[i].x += o.x;
          sum[i].y += o.y;
          sum[i].z += o.z;
          sum[i].w += o.w;
        }
      }
    }
    if (!active) continue;
    const OutputRow<C::MATH> output(p, batch, rows.head(row), rows.position(row), top, total, lane == 0);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int column = i * 128 + lane * 4;
      output.store(p, column, sum[i].x, sum[i].y);
      output.store(p, column + 2, sum[i].z, sum[i].w);
    }
  }
}

constexpr int kCombineWarps = 8;

// Thread block (32, kCombineWarps), one for each row of the output (B,N,S).
template <class C>
__global__ void __launch_bounds__(32 * kCombineWarps) combine_kernel(const __grid_constant__ Params p) {
  __shared__ float4 sums[kCombineWarps][C::COLUMNS / 4];
  let_next_kernel_start();
  const int position = blockIdx.x % p.q_len, head = blockIdx.x / p.q_len % p.num_heads;
  const int batch = blockIdx.x / p.q_len / p.num_heads;
  const int kv_head = head / p.group;
  const int row = head % p.group * p.q_len + position;

  const Parts parts(KeySlices<C::UNIT_KEYS>(p), batch);
  wait_for_previous_kernel();
  if (parts.count == 1) return;  // the output is already there
  combine_rows<C, kCombineWarps>(p, Rows(p, kv_head, row / C::ROWS, C::ROWS), row % C::ROWS, row % C::ROWS + 1, batch,
                                 kv_head, parts, sums);
}

}  // namespace ortflash::decode

// Puts the parts of each row together whose keys lie in more than one slice (partial.cuh).
#pragma once

#include <cstdint>

#include "../kernel_params.h"
#include "config.cuh"
#include "dependent_launch.cuh"
#include "key_slices.cuh"
#include "partial.cuh"
#include "rows.cuh"

namespace ortflash::decode {

constexpr int kCombineWarps = 8;

// Thread block (32, kCombineWarps), one for each row of the output (B,N,S). Each warp adds every eighth part.
template <class C>
__global__ void __launch_bounds__(32 * kCombineWarps) combine_kernel(const __grid_constant__ KernelParams p) {
  __shared__ float4 sums[kCombineWarps][C::COLUMNS / 4];
  let_next_kernel_start();
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int position = blockIdx.x % p.q_len, head = blockIdx.x / p.q_len % p.num_heads;
  const int batch = blockIdx.x / p.q_len / p.num_heads;
  const int kv_head = head / p.group;
  const int row = head % p.group * p.q_len + position;

  const KeySlices<C::UNIT_KEYS> slices(p);
  const int64_t first_unit = slices.before(batch);
  const int64_t first_slice = slices.slice_of(first_unit);
  const int parts = static_cast<int>(slices.slice_of(first_unit + slices.units(batch) - 1) - first_slice) + 1;
  wait_for_previous_kernel();
  if (parts == 1) return;  // the output is already there
  const auto part_row = [&](int part) { return partial_row(p, first_slice + part, kv_head, part == 0, row); };

  const float sink = sink_of(p, head);
  float top = sink;
  for (int part = lane; part < parts; part += 32) top = fmaxf(top, p.partial_state[part_row(part)].x);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
  float total = 0.0f;
  for (int part = lane; part < parts; part += 32) {
    const float2 state = p.partial_state[part_row(part)];
    total += partial_weight(state.x, top) * state.y;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  total += partial_weight(sink, top);

  const int pitch = partial_pitch(p.v_head_size);
  constexpr int kPieces = (C::COLUMNS + 127) / 128;  // of four columns, to a lane
  float4 sum[kPieces] = {};
#pragma unroll(4 / kPieces)
  for (int part = warp; part < parts; part += kCombineWarps) {
    const int64_t from = part_row(part);
    const float weight = partial_weight(p.partial_state[from].x, top);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int column = i * 128 + lane * 4;
      if (column >= pitch) continue;
      const float4 o = *reinterpret_cast<const float4*>(p.partial_output + from * pitch + column);
      sum[i].x += weight * o.x;
      sum[i].y += weight * o.y;
      sum[i].z += weight * o.z;
      sum[i].w += weight * o.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (i * 32 + lane < C::COLUMNS / 4) sums[warp][i * 32 + lane] = sum[i];
  }
  __syncthreads();  // all warps' sums are there

  const OutputRow<C::MATH> output(p, batch, head, position, top, total, warp == 0 && lane == 0);
  for (int column = (warp * 32 + lane) * 2; column < p.v_head_size; column += 64 * kCombineWarps) {
    float2 o = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < kCombineWarps; ++w) {
      const float2 part = reinterpret_cast<const float2*>(sums[w])[column / 2];
      o.x += part.x;
      o.y += part.y;
    }
    output.store(p, column, o.x, o.y);
  }
}

}  // namespace ortflash::decode

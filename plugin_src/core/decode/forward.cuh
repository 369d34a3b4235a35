// Attention of few queries over many keys. Reading K and V is all that takes time, so what counts is that every
// multiprocessor has many bytes under way, from the first moment to the last.
//
//   for each batch element that the thread block's slice of a head's keys reaches into:      key_slices.cuh
//     each warp:  O, m, sum over its keys                                                    attend.cuh
//     together:   the warps' results become one, which is the output, or one part of it      partial.cuh
//   the parts become the output, here or in a kernel of their own                              combine.cuh
#pragma once

#include <cstdint>

#include "../kernel_params.h"
#include "attend.cuh"
#include "combine.cuh"
#include "config.cuh"
#include "dependent_launch.cuh"
#include "key_slices.cuh"
#include "params.h"
#include "part_flags.cuh"
#include "partial.cuh"
#include "rows.cuh"

namespace ortflash::decode {

// The warp's result to shared memory: its rows of O to `rows_smem`, their (m, sum) to `state_smem`.
template <class C>
__device__ __forceinline__ void store_result(const WarpResult<C>& result, const Rows& rows, float* rows_smem,
                                             float2* state_smem) {
  const int lane = threadIdx.x;
#pragma unroll
  for (int r = 0; r < 2 * C::M_TILES; ++r) {
    const int row = sm80::lane_row(r, lane);
    const float sum = sum_across_row_lanes(result.softmax[r].row_sum);
    if (row >= rows.count) continue;
    if (lane % 4 == 0) state_smem[row] = make_float2(result.softmax[r].row_max, sum);
    float2* to = reinterpret_cast<float2*>(rows_smem + row * C::RESULT_PITCH + lane % 4 * 2);
#pragma unroll
    for (int n = 0; n < C::O_TILES; ++n) {
      to[n * 4] = make_float2(result.o[r / 2][n][r % 2 * 2], result.o[r / 2][n][r % 2 * 2 + 1]);
    }
  }
}

// The warps' results of one segment become the output, where the segment is all of a batch element's keys, or a part of
// it. Each warp takes every WARPS-th row. `results`, `states`: the warps' own ones, `result_pitch` floats apart.
template <class C>
__device__ __forceinline__ void merge_warps(const KernelParams& p, const Rows& rows, const float* results,
                                            const float2* states, int batch, bool complete, int64_t first_partial_row) {
  constexpr int kResultFloats = C::RING_SMEM / static_cast<int>(sizeof(float));
  const int lane = threadIdx.x;
  for (int row = threadIdx.y; row < rows.count; row += C::WARPS) {
    const float sink = complete ? sink_of(p, rows.head(row)) : -INFINITY;
    float top = sink;
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w) top = fmaxf(top, states[w * C::ROWS + row].x);
    float weight[C::WARPS], total = partial_weight(sink, top);
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w) {
      weight[w] = partial_weight(states[w * C::ROWS + row].x, top);
      total += weight[w] * states[w * C::ROWS + row].y;
    }
    const auto sum = [&](int column) {
      float2 o = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int w = 0; w < C::WARPS; ++w) {
        const float2 part =
            *reinterpret_cast<const float2*>(results + w * kResultFloats + row * C::RESULT_PITCH + column);
        o.x += weight[w] * part.x;
        o.y += weight[w] * part.y;
      }
      return o;
    };
    const int columns = partial_pitch(p.v_head_size);
    if (complete) {
      const OutputRow<C::MATH> output(p, batch, rows.head(row), rows.position(row), top, total, lane == 0);
      for (int column = lane * 2; column < columns; column += 64) {
        const float2 o = sum(column);
        output.store(p, column, o.x, o.y);
      }
    } else {
      const int64_t to = first_partial_row + row;
      if (lane == 0) p.partial_state[to] = make_float2(top, total);
      for (int column = lane * 2; column < columns; column += 64) {
        *reinterpret_cast<float2*>(p.partial_output + to * columns + column) = sum(column);
      }
    }
  }
}

// Where the keys of the batch element with which the slice begins began in an earlier slice and end in this one: waits
// for their other parts and writes the output. `smem`: idle.
template <class C>
__device__ __forceinline__ void finish_first(const Params& p, const Rows& rows, const KeySlices<C::UNIT_KEYS>& slices,
                                             int slice, int kv_head, int row_tile, uint8_t* smem) {
  const int begin = slices.begin(slice);
  const auto place = slices.find(begin);
  const int units = slices.units(place.batch);
  if (place.first_unit == begin || place.first_unit + units > slices.begin(slice + 1)) return;
  const Parts parts(slices, place.first_unit, units);
  for (int part = threadIdx.y * 32 + threadIdx.x; part < parts.count - 1; part += C::THREADS) {
    await_flag(part_flag(p, parts.first_slice + part, kv_head, row_tile, part == 0), p.raised);
  }
  __syncthreads();  // all parts are there
  combine_rows<C, C::WARPS>(p, rows, 0, rows.count, place.batch, kv_head, parts,
                            reinterpret_cast<float4(*)[C::COLUMNS / 4]>(smem));
}

// Thread block (32, WARPS); grid: row tiles, key/value heads, slices. So what is read at the same time are the same
// keys for all tiles of rows, which L2 serves, and the same stretch of keys for all heads, which may lie side by side.
template <class C>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) forward_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  float* const results = reinterpret_cast<float*>(smem);
  float2* const states = reinterpret_cast<float2*>(smem + C::STATES_AT);
  uint8_t* const own_ring = smem + threadIdx.y * C::RING_SMEM;
  wait_for_previous_kernel();
  let_next_kernel_start();

  const int kv_heads = p.num_heads / p.group;
  const int kv_head = blockIdx.x / p.row_tiles % kv_heads;
  const int slice = blockIdx.x / p.row_tiles / kv_heads;
  const int row_tile = blockIdx.x % p.row_tiles;
  const Rows rows(p, kv_head, row_tile, C::ROWS);
  const KeySlices<C::UNIT_KEYS> slices(p);
  if (slice >= slices.slices) return;

  int unit = slices.begin(slice);
  const int end_unit = slices.begin(slice + 1);
  for (auto place = slices.find(unit); unit < end_unit; ++place.batch) {
    const int units = slices.units(place.batch);
    const int first = unit - place.first_unit;
    const int end = min(end_unit - place.first_unit, units);
    const BatchKeys keys(p, place.batch);
    WarpResult<C> result;
    attend(result, p, rows, place.batch, kv_head, keys, keys.begin + first * C::UNIT_KEYS,
           min(keys.end, keys.begin + end * C::UNIT_KEYS), sm80::smem_address(own_ring), smem + C::QUERY_AT);
    __syncwarp();  // all lanes are done with the ring, which the result overwrites
    store_result<C>(result, rows, reinterpret_cast<float*>(own_ring), states + threadIdx.y * C::ROWS);
    __syncthreads();  // all results are there
    merge_warps<C>(p, rows, results, states, place.batch, first == 0 && end == units,
                   partial_row(p, slice, kv_head, first == 0, rows.first_row));
    __syncthreads();  // all results are read: the rings may be filled again. And a part is written
    if (p.part_flags != nullptr && end < units && threadIdx.x == 0 && threadIdx.y == 0) {
      raise_flag(part_flag(p, slice, kv_head, row_tile, first == 0), p.raised);
    }
    unit = place.first_unit + end;
    place.first_unit += units;
  }
  if (p.part_flags != nullptr) finish_first<C>(p, rows, slices, slice, kv_head, row_tile, smem);
}

}  // namespace ortflash::decode

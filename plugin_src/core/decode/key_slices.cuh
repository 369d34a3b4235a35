// How the keys are shared out: for each key/value head, the keys of all batch elements lie in one line, cut into units
// of UNIT_KEYS keys, and the line is cut into p.key_splits slices of equal length, one for each thread block.
//
//   slice j takes units [floor(total j / slices), floor(total (j + 1) / slices))
//
// So thread blocks finish together however the batch is made up, and no row is split further than that takes. Keys that
// no row sees (past key_lengths, outside the window) are not in the line. All of it follows from sizes and lengths
// alone: sums have the same order in every run.
#pragma once

#include <cstdint>

#include "../block_range.cuh"
#include "../kernel_params.h"

namespace ortflash::decode {

// Up to this many lengths are added up by every warp; for more of them each batch element counts as if it were full.
constexpr int kMaxSummedLengths = 2048;

// The keys of one batch element that any of its rows sees, from a multiple of 16.
struct BatchKeys {
  KeyRange range;
  TileRange tile;
  int begin, end;

  __device__ __forceinline__ BatchKeys(const KernelParams& p, int batch)
      : range(p, batch), tile(range, 0, p.q_len - 1), begin(tile.begin & ~15), end(max(tile.end, begin)) {}
};

// All lanes of a warp make it and call it together, with the same arguments.
template <int UNIT_KEYS>
struct KeySlices {
  const KernelParams& p;
  bool summed;  // lengths are added up; otherwise each batch element has equal_units
  int equal_units;
  int total;  // units of one key/value head
  int slices;

  __device__ __forceinline__ explicit KeySlices(const KernelParams& params) : p(params) {
    const bool differ = p.key_lengths != nullptr && p.key_lengths_stride != 0;
    summed = differ && p.batch <= kMaxSummedLengths;
    equal_units = differ ? max(1, units_for(p.kv_len)) : units_of(0);
    total = before(p.batch);
    slices = min(p.key_splits, total);
  }

  static __device__ __forceinline__ int units_for(int keys) { return (keys + UNIT_KEYS - 1) / UNIT_KEYS; }

  // At least one, in which nothing may take part: somebody has to write the row.
  __device__ __forceinline__ int units_of(int batch) const {
    const BatchKeys keys(p, batch);
    return max(1, units_for(keys.end - keys.begin));
  }
  __device__ __forceinline__ int units(int batch) const { return summed ? units_of(batch) : equal_units; }

  // Units of the batch elements before this one.
  __device__ __forceinline__ int before(int batch) const {
    if (!summed) return equal_units * batch;
    int sum = 0;
    for (int b = threadIdx.x % 32; b < batch; b += 32) sum += units_of(b);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }

  __device__ __forceinline__ int begin(int slice) const {
    return static_cast<int>(static_cast<int64_t>(total) * slice / slices);
  }
  // The slice that has this unit: the largest with begin(slice) <= unit.
  __device__ __forceinline__ int slice_of(int unit) const {
    return static_cast<int>((static_cast<int64_t>(unit + 1) * slices - 1) / total);
  }

  // The batch element that has this unit, and its first unit.
  struct Place {
    int batch;
    int first_unit;
  };
  __device__ __forceinline__ Place find(int unit) const {
    if (!summed) {
      const int batch = unit / equal_units;
      return {batch, batch * equal_units};
    }
    const int lane = threadIdx.x % 32;
    int sum = 0;  // units before the 32 batch elements at hand
    for (int first = 0;; first += 32) {
      const int own = first + lane < p.batch ? units_of(first + lane) : 0;
      int through = own;  // units of those up to and with the lane's
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int left = __shfl_up_sync(0xffffffffu, through, step);
        if (lane >= step) through += left;
      }
      const unsigned past = __ballot_sync(0xffffffffu, sum + through > unit);
      if (past != 0) {
        const int found = __ffs(past) - 1;
        return {first + found, sum + __shfl_sync(0xffffffffu, through - own, found)};
      }
      sum += __shfl_sync(0xffffffffu, through, 31);
    }
  }
};

// Where the partial result of one slice lies: a batch element that begins in the slice and goes on in the next one is
// its last, one that began before is its first.
__device__ __forceinline__ int64_t partial_row(const KernelParams& p, int slice, int kv_head, bool begins_here,
                                               int row) {
  const int64_t kv_heads = p.num_heads / p.group;
  return (((slice * kv_heads + kv_head) * 2 + begins_here) * p.group) * p.q_len + row;
}

// Floats from one partial row to the next.
__host__ __device__ __forceinline__ int partial_pitch(int v_head_size) { return (v_head_size + 3) / 4 * 4; }

}  // namespace ortflash::decode

// The loading warpgroup of the gradients' kernel: one warp brings K, V, Q, dO and the rows' statistics, two take dQ of
// each step away.
#pragma once

#include "backward_params.h"
#include "backward_tile.cuh"

namespace ortflash::sm90 {

template <class Tile>
__device__ __forceinline__ void copy_rows(uint8_t* destination, const CUtensorMap& map, Barrier& full, int rows,
                                          int first_row, int head, int batch, uint64_t policy) {
#pragma unroll
  for (int panel = 0; panel < Tile::PANELS; ++panel) {
    copy_box(destination + panel * rows * kPanel * 2, map, full, panel * kPanel, first_row, head, batch, policy);
  }
}

// By one thread.
template <class Tile>
__device__ __forceinline__ void load_operands(const BackwardMaps& maps, const BackwardParams& p, const KeyTile& t,
                                              BackwardStorage<Tile>& shared) {
  QueryStep step(p, t);
  constexpr int kStatisticsBytes = Tile::BLOCK_Q * 4;
  const uint64_t last = evict_last_policy();
  for (int number = 0; Tile::MASKED || step.valid(p, t); ++number) {
    const int slot = slot_of<Tile::STAGES>(number);
    const uint32_t parity = parity_of<Tile::STAGES>(number) ^ 1;
    if constexpr (Tile::MASKED) {
      shared.step_full[slot].wait(parity ^ 1);
      step.take(shared.step[slot]);
      if (step.tile < 0) {  // that was all
        if (number == 0) {
          shared.k_full.arrive();
          shared.v_full.arrive();
        }
        shared.q_full[slot].arrive();
        return;
      }
    }
    const int row = step.tile * Tile::BLOCK_Q;
    const int64_t statistics = (int64_t{t.batch} * p.num_heads + step.head) * p.padded_q_len + row;
    if (number == 0) {
      shared.k_full.arrive_expecting(Tile::KV_BYTES);
      copy_rows<Tile>(shared.k, maps.key, shared.k_full, Tile::BLOCK_KV, t.key, t.kv_head, t.batch,
                      evict_first_policy());
    }
    shared.q_empty[slot].wait(parity);
    shared.q_full[slot].arrive_expecting(Tile::Q_BYTES + kStatisticsBytes);
    copy_rows<Tile>(shared.q[slot], maps.query, shared.q_full[slot], Tile::BLOCK_Q, row, step.head, t.batch, last);
    copy_line(shared.lse_log2[slot], p.lse_log2 + statistics, kStatisticsBytes, shared.q_full[slot]);
    if (number == 0) {
      shared.v_full.arrive_expecting(Tile::KV_BYTES);
      copy_rows<Tile>(shared.v, maps.value, shared.v_full, Tile::BLOCK_KV, t.key, t.kv_head, t.batch,
                      evict_first_policy());
    }
    shared.d_output_empty[slot].wait(parity);
    shared.d_output_full[slot].arrive_expecting(Tile::Q_BYTES + kStatisticsBytes);
    copy_rows<Tile>(shared.d_output[slot], maps.d_output, shared.d_output_full[slot], Tile::BLOCK_Q, row, step.head,
                    t.batch, last);
    copy_line(shared.delta[slot], p.delta + statistics, kStatisticsBytes, shared.d_output_full[slot]);
    if constexpr (!Tile::MASKED) step.advance(t);
  }
}

// By one warp, where MASKED: says which steps there are.
template <class Tile>
__device__ __forceinline__ void find_steps(const BackwardParams& p, const KeyTile& t, BackwardStorage<Tile>& shared) {
  SeenStep<Tile> step(p, t);
  for (int number = 0;; ++number) {
    if (threadIdx.x % 32 == 0) {
      const int slot = slot_of<Tile::STAGES>(number);
      shared.q_empty[slot].wait(parity_of<Tile::STAGES>(number) ^ 1);  // its readers are done with the name as well
      shared.step[slot] = step;
      shared.step_full[slot].arrive();
    }
    if (!step.valid()) return;
    step.advance(p, t);
  }
}

// By one thread a warpgroup: d_query_sum += what that warpgroup left in shared memory.
template <class Tile>
__device__ __forceinline__ void add_query_gradients(const BackwardParams& p, const KeyTile& t,
                                                    BackwardStorage<Tile>& shared, int group) {
  constexpr int kBytes = Tile::SUM_FLOATS * 4;
  QueryStep step(p, t);
  for (int number = 0; Tile::MASKED || step.valid(p, t); ++number) {
    shared.d_query_full[group].wait(static_cast<uint32_t>(number) & 1);
    if constexpr (Tile::MASKED) {
      step.take(shared.d_query_step[group]);
      if (step.tile < 0) break;
    }
    const int64_t tile = (int64_t{t.batch} * p.num_heads + step.head) * p.query_tiles + step.tile;
    add_line(p.d_query_sum + (tile * Tile::WARPGROUPS + group) * Tile::SUM_FLOATS, shared.d_query[group], kBytes);
    bulk_commit();
    bulk_wait_read();
    shared.d_query_empty[group].arrive();
    if constexpr (!Tile::MASKED) step.advance(t);
  }
  bulk_wait();
}

}  // namespace ortflash::sm90

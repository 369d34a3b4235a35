// A multiplying warpgroup of the gradients' kernel: 64 keys, one step after the other.
//
//   S^T  = K Q^T              P^T  = 2^(scale_log2 S^T - lse_log2)
//   dP^T = V dO^T             dX^T = P^T (dP^T - delta)
//   dV  += P^T dO             dK  += dX^T Q        operands P^T and dX^T straight from accumulators
//   dQ   = dX K               both warpgroups' dX^T, through shared memory; half of dQ each
//
// The two warpgroups meet once a step; in between one multiplies while the other computes weights.
#pragma once

#include "backward_params.h"
#include "backward_rows.cuh"
#include "backward_tile.cuh"
#include "wgmma.cuh"

namespace ortflash::sm90 {

template <class Tile>
class GradientConsumer {
 public:
  __device__ __forceinline__ GradientConsumer(const BackwardParams& p, const KeyTile& t, BackwardStorage<Tile>& shared)
      : p_(p),
        t_(t),
        shared_(shared),
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 1, 0)),
        leader_(threadIdx.x % 32 == 0) {}

  __device__ __forceinline__ void run() {
    KeyGradient d_key = {}, d_value = {};
    QueryStep walk(p_, t_);
    if (Tile::MASKED || __any_sync(~0u, walk.valid(p_, t_))) {
      shared_.k_full.wait(0);
      shared_.v_full.wait(0);
      if constexpr (Tile::MASKED) clear_keys_past_the_end();
    }
    int number = 0;
    for (; Tile::MASKED || __any_sync(~0u, walk.valid(p_, t_)); ++number) {
      const int slot = slot_of<Tile::STAGES>(number);
      const uint32_t parity = parity_of<Tile::STAGES>(number);
      const QueryStep now = walk;
      if constexpr (!Tile::MASKED) walk.advance(t_);
      Scores s, d_weights;
      Operand weights, d_scores;
      float d_query[32];
      shared_.q_full[slot].wait(parity);
      if constexpr (Tile::MASKED) {
        if (__any_sync(~0u, step_in(slot).tile < 0)) break;
      }
      issue_scores(s, shared_.k, shared_.q[slot]);
      shared_.d_output_full[slot].wait(parity);
      issue_scores(d_weights, shared_.v, shared_.d_output[slot]);
      wgmma_wait<1>();
      pin(s);
      if constexpr (Tile::MASKED) exclude_masked_keys(s, slot);
      scores_to_weights(s, slot, (Tile::MASKED ? step_in(slot).tile : now.tile) * Tile::BLOCK_Q);
      convert(s, weights);
      wgmma_wait<0>();
      pin(d_weights);
      weights_to_scores(d_weights, s, slot);
      convert(d_weights, d_scores);
      issue_key_gradient(d_value, weights, shared_.d_output[slot]);
      store_scores(d_scores, number & 1);
      fence_proxy_async();
      named_barrier_sync(1, 128 * Tile::WARPGROUPS);  // both warpgroups' dX^T is there; and dQ of the step before done
      issue_query_gradient(d_query, number & 1);
      issue_key_gradient(d_key, d_scores, shared_.q[slot]);
      wgmma_wait<2>();
      pin(d_value);
      if (leader_) shared_.d_output_empty[slot].arrive();
      wgmma_wait<1>();
      pin(d_query);
      store_query_gradient(d_query, slot, number);
      wgmma_wait<0>();
      pin(d_key);
      if (leader_) shared_.q_empty[slot].arrive();
    }
    if constexpr (Tile::MASKED) {
      if (leader_) {  // that was all
        shared_.d_query_empty[group_].wait((static_cast<uint32_t>(number) & 1) ^ 1);
        if (threadIdx.x % 128 == 0) shared_.d_query_step[group_] = {0, -1};
        shared_.d_query_full[group_].arrive();
      }
    }
    const int row = t_.key + group_ * kWarpgroupRows;
    store_gradient<typename Tile::Element>(d_key, p_.scale, p_.d_key, p_.d_key_strides, t_.batch, t_.kv_head, row,
                                           p_.kv_len, 0, p_.head_size);
    store_gradient<typename Tile::Element>(d_value, 1.0f, p_.d_value, p_.d_value_strides, t_.batch, t_.kv_head, row,
                                           p_.kv_len, 0, p_.head_size);
  }

 private:
  // Accumulators. [4 j + 2 row + {0, 1}]: key lane / 4 + 8 row of the warp's 16, query (or column of the head)
  // 8 j + 2 (lane % 4) + {0, 1}.
  using Scores = float[Tile::BLOCK_Q / 2];
  using Operand = uint32_t[Tile::BLOCK_Q / 4];
  using KeyGradient = float[Tile::HEAD / 2];

  // Where MASKED: which step is in a slot of q. Read by the lane that hands the slot back.
  __device__ __forceinline__ StepName step_in(int slot) const {
    const StepName step = leader_ ? shared_.step[slot] : StepName{};
    return {__shfl_sync(~0u, step.head, 0), __shfl_sync(~0u, step.tile, 0)};
  }

  // ------------------------------------------------------------------------------------------------- products
  // S^T = K Q^T, or dP^T = V dO^T.
  __device__ __forceinline__ void issue_scores(Scores& s, const uint8_t* own, const uint8_t* other) {
    const uint64_t a = matrix_descriptor(opaque(smem_address(own + group_ * kWarpgroupRows * 128)), 16, 1024);
    const uint64_t b = matrix_descriptor(smem_address(other), 16, 1024);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < Tile::HEAD / 16; ++j) {  // 16 columns: 32 bytes inside a panel
      const int inside = j % 4 * 32;
      Wgmma<typename Tile::Element, Tile::BLOCK_Q>::scores(s, a + (j / 4 * Tile::BLOCK_KV * 128 + inside) / 16,
                                                           b + (j / 4 * Tile::BLOCK_Q * 128 + inside) / 16, j != 0);
    }
    wgmma_commit();
  }

  // dV += P^T dO, or dK += dX^T Q.
  __device__ __forceinline__ void issue_key_gradient(KeyGradient& gradient, const Operand& operand,
                                                     const uint8_t* rows) {
    const uint64_t b = matrix_descriptor(smem_address(rows), Tile::BLOCK_Q * 128, 1024);
    pin(gradient);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < Tile::BLOCK_Q / 16; ++j) {  // 16 rows of 128 bytes
      Wgmma<typename Tile::Element, Tile::HEAD>::weighted(gradient, operand[4 * j], operand[4 * j + 1],
                                                          operand[4 * j + 2], operand[4 * j + 3], b + j * 16 * 128 / 16,
                                                          1);
    }
    wgmma_commit();
  }

  // This warpgroup's 64 x 64 of dQ = dX K: with 128 queries its half of them, with 128 columns its half of those.
  __device__ __forceinline__ void issue_query_gradient(float (&gradient)[32], int slot) {
    constexpr int kPanelBytes = Tile::BLOCK_KV * 128;
    const int query_panel = Tile::BLOCK_Q > 64 ? group_ : 0, column_panel = Tile::HEAD > 64 ? group_ : 0;
    const uint64_t a =
        matrix_descriptor(smem_address(shared_.d_scores[slot] + query_panel * kPanelBytes), kPanelBytes, 1024);
    const uint64_t b = matrix_descriptor(smem_address(shared_.k + column_panel * kPanelBytes), kPanelBytes, 1024);
    pin(gradient);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < Tile::BLOCK_KV / 16; ++j) {  // 16 keys of 128 bytes
      Wgmma<typename Tile::Element, 64>::transposed(gradient, a + j * 16 * 128 / 16, b + j * 16 * 128 / 16, j != 0);
    }
    wgmma_commit();
  }

  // ------------------------------------------------------------------------------------------------ arithmetic
  __device__ __forceinline__ int lane_key() const {
    return t_.key + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + group_ * kWarpgroupRows +
           static_cast<int>(threadIdx.x) % 32 / 4;
  }

  // Zeros for K and V at and past key_lengths, where anything may lie: 0 * NaN would be NaN.
  __device__ __forceinline__ void clear_keys_past_the_end() {
    const int first = max(0, t_.keys - t_.key);
    if (first >= Tile::BLOCK_KV) return;
    constexpr int kChunks = 8 * Tile::PANELS;  // of a row, 16 bytes each
    for (int i = first * kChunks + static_cast<int>(threadIdx.x) - 128; i < Tile::BLOCK_KV * kChunks; i += 256) {
      const int at = i % kChunks / 8 * Tile::BLOCK_KV * 128 + i / kChunks * 128 + i % 8 * 16;
      *reinterpret_cast<uint4*>(shared_.k + at) = *reinterpret_cast<uint4*>(shared_.v + at) = make_uint4(0, 0, 0, 0);
    }
    fence_proxy_async();
    named_barrier_sync(1, 128 * Tile::WARPGROUPS);  // all of it is cleared
  }

  // s = -inf for the keys that attn_mask leaves out.
  __device__ __forceinline__ void exclude_masked_keys(Scores& s, int slot) {
    if (p_.mask == nullptr) return;
    const uint8_t* row = p_.mask + t_.batch * p_.mask_batch + step_in(slot).head * p_.mask_head;
    bool kept[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) kept[r] = row[min(lane_key() + 8 * r, p_.kv_len - 1) * p_.mask_column] != 0;
    if (__any_sync(~0u, !kept[0] || !kept[1])) {
#pragma unroll
      for (int i = 0; i < Tile::BLOCK_Q / 2; ++i) {
        if (!kept[i / 2 % 2]) s[i] = -INFINITY;
      }
    }
  }

  // s = P^T. Queries past q_len have lse_log2 = inf, and so a weight of 0.
  __device__ __forceinline__ void scores_to_weights(Scores& s, int slot, int first_query) {
    const int keys = t_.keys;
    const bool clean = t_.key + Tile::BLOCK_KV <= min(keys, first_query + t_.high) &&
                       t_.key >= first_query + Tile::BLOCK_Q - 1 + t_.low;
    if (!clean) {
      const int key = opaque(lane_key()), query = first_query + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
      for (int i = 0; i < Tile::BLOCK_Q / 2; ++i) {
        const int k = key + i / 2 % 2 * 8, q = query + i / 4 * 8 + i % 2;
        if (k < q + t_.low || k >= min(keys, q + t_.high)) s[i] = -INFINITY;
      }
    }
    const auto* lse = reinterpret_cast<const float2*>(shared_.lse_log2[slot]) + threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < Tile::BLOCK_Q / 8; ++j) {
      const float2 l = lse[4 * j];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[4 * j + i] = exp2_approx(fmaf(s[4 * j + i], p_.scale_log2, i % 2 == 0 ? -l.x : -l.y));
      }
    }
  }

  // d = dX^T from dP^T.
  __device__ __forceinline__ void weights_to_scores(Scores& d, const Scores& weights, int slot) {
    const auto* delta = reinterpret_cast<const float2*>(shared_.delta[slot]) + threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < Tile::BLOCK_Q / 8; ++j) {
      const float2 l = delta[4 * j];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        d[4 * j + i] = weights[4 * j + i] * (d[4 * j + i] - (i % 2 == 0 ? l.x : l.y));
      }
    }
  }

  // An accumulator is, repacked, an A operand.
  static __device__ __forceinline__ void convert(const Scores& s, Operand& operand) {
#pragma unroll
    for (int i = 0; i < Tile::BLOCK_Q / 4; ++i) operand[i] = pack<typename Tile::Element>(s[2 * i], s[2 * i + 1]);
  }

  // -------------------------------------------------------------------------------------- to shared memory
  // dX^T, 64 keys by BLOCK_Q, into the panels that dQ reads.
  __device__ __forceinline__ void store_scores(const Operand& operand, int slot) {
    // Lane 8i + r gives the address of row r of matrix i: keys 8 (i % 2) + r, queries 8 (i / 2) of 16.
    const int lane = threadIdx.x % 32;
    const int key = group_ * kWarpgroupRows + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane % 16;
    const uint32_t row = smem_address(shared_.d_scores[slot]) + key * 128;
#pragma unroll
    for (int j = 0; j < Tile::BLOCK_Q / 16; ++j) {
      const int chunk = j % 4 * 2 + lane / 16;  // of eight queries in the panel
      const uint32_t to = row + j / 4 * Tile::BLOCK_KV * 128 + ((chunk ^ (key & 7)) << 4);
      store_matrices(to, operand[4 * j], operand[4 * j + 1], operand[4 * j + 2], operand[4 * j + 3]);
    }
  }

  __device__ __forceinline__ void store_query_gradient(const float (&gradient)[32], int slot, int number) {
    shared_.d_query_empty[group_].wait((static_cast<uint32_t>(number) & 1) ^ 1);
    auto* to = reinterpret_cast<float4*>(shared_.d_query[group_]) + threadIdx.x % 128;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      to[128 * j] = make_float4(gradient[4 * j], gradient[4 * j + 1], gradient[4 * j + 2], gradient[4 * j + 3]);
    }
    if (Tile::MASKED && threadIdx.x % 128 == 0) shared_.d_query_step[group_] = shared_.step[slot];
    fence_proxy_async();
    __syncwarp();
    if (leader_) shared_.d_query_full[group_].arrive();
  }

  const BackwardParams& p_;
  const KeyTile& t_;
  BackwardStorage<Tile>& shared_;
  const int group_;
  const bool leader_;
};

}  // namespace ortflash::sm90

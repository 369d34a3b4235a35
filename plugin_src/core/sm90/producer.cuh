// The loading warpgroup: one warp brings Q, K and V, one the tiles of bias and mask, and one answers for tiles that no
// key takes part in, of which the consumers never hear.
//
// K of the next block is asked for before V of this one, also where it is the next tile's first: the consumers issue
// Q K^T of a block together with P V of the block before. Q is asked for a whole tile ahead where it has two slots.
#pragma once

#include "block_walk.cuh"
#include "shared_storage.cuh"
#include "term_sources.cuh"

namespace ortflash::sm90 {

template <class Tile>
class OperandLoader {
 public:
  __device__ OperandLoader(const ForwardMaps& maps, const ForwardParams& p, SharedStorage<Tile>& shared)
      : maps_(maps), p_(p), shared_(shared), leader_(threadIdx.x % 32 == 0) {}

  // By a whole warp.
  __device__ void run() {
    TileWalk<Tile::BLOCK_Q, Tile::BLOCK_KV> tiles(p_);
    Work work = find(tiles);
    QueryTile before;              // the tile whose last V is still to come
    KvStep left{-1, true, false};  // and its step
    bool asked = false;            // for Q of `work`
    while (work.tile.valid()) {
      KvStep step = work.walk.next(p_, work.tile);
      load_key(work.tile, step);
      if (left.block >= 0) load_value(before, left, keys_ - 2);
      if (!asked) load_query(work.tile);
      const Work next = find(tiles);
      int steps = 1;
      while (!work.walk.done()) {
        const KvStep below = work.walk.next(p_, work.tile);
        load_key(work.tile, below);
        load_value(work.tile, step, keys_ - 2);
        step = below;
        // Waits for the tile before this one, so first the ring of K and V is filled.
        if (++steps == Tile::KV_STAGES && Tile::Q_STAGES == 2) load_query(next.tile);
      }
      if (steps < Tile::KV_STAGES && Tile::Q_STAGES == 2) load_query(next.tile);
      asked = Tile::Q_STAGES == 2;
      left = step;
      before = work.tile;
      work = next;
    }
    if (left.block >= 0) load_value(before, left, keys_ - 1);
    if (!asked) load_query(work.tile);
  }

 private:
  struct Work {
    QueryTile tile;
    BlockWalk<Tile> walk;
  };

  // The next tile that has keys, or one that isn't valid after the last.
  __device__ Work find(TileWalk<Tile::BLOCK_Q, Tile::BLOCK_KV>& tiles) {
    while (true) {
      const QueryTile tile = tiles.next();
      const BlockWalk<Tile> walk(p_, tile);
      if (!tile.valid() || !walk.done()) return {tile, walk};
    }
  }

  __device__ void load_key(const QueryTile& tile, const KvStep& step) {
    const int stage = slot_of<Tile::KV_STAGES>(keys_);
    shared_.k_empty[stage].wait(parity_of<Tile::KV_STAGES>(keys_) ^ 1);
    if (leader_) {
      if constexpr (Tile::BLOCK_MASK) shared_.step[stage] = step.encode();
      shared_.k_full[stage].arrive_expecting(Tile::KV_BYTES);
      copy_panels(shared_.k[stage], maps_.key, shared_.k_full[stage], Tile::BLOCK_KV, step.block * Tile::BLOCK_KV,
                  tile.head / p_.heads_per_kv, tile.batch, evict_last_policy());
    }
    ++keys_;
  }

  // Keys that take no part, past key_lengths or by block_mask, may have values of any kind, and 0 * NaN is NaN.
  __device__ void load_value(const QueryTile& tile, const KvStep& step, int number) {
    const int stage = slot_of<Tile::KV_STAGES>(number);
    const int row = step.block * Tile::BLOCK_KV;
    const bool patchwork = Tile::ANY_TERMS && step.patchwork;
    const bool whole = !patchwork && (tile.keys == p_.kv_len || tile.keys >= row + Tile::BLOCK_KV);
    Barrier& landed = whole ? shared_.v_full[stage] : shared_.v_landed;
    shared_.v_empty[stage].wait(parity_of<Tile::KV_STAGES>(number) ^ 1);
    if (leader_) {
      landed.arrive_expecting(Tile::KV_BYTES);
      copy_panels(shared_.v[stage], maps_.value, landed, Tile::BLOCK_KV, row, tile.head / p_.heads_per_kv, tile.batch,
                  evict_last_policy());
    }
    if (!whole) {
      shared_.v_landed.wait(landed_parity_);
      landed_parity_ ^= 1;
      zero_rows(shared_.v[stage], tile.keys - row, Tile::BLOCK_KV);
      if constexpr (Tile::ANY_TERMS) {
        if (patchwork) {
          const uint32_t kept = kept_groups<Tile>(p_, tile, step.block);
          for (int group = 0; group < Tile::BLOCK_KV / 16; ++group) {
            if ((kept >> group & 1) == 0) zero_rows(shared_.v[stage], group * 16, group * 16 + 16);
          }
        }
      }
      fence_proxy_async();
      __syncwarp();
      if (leader_) shared_.v_full[stage].arrive();
    }
  }

  // Rows [first, end); the swizzle moves nothing from row to row.
  __device__ void zero_rows(uint8_t* v, int first, int end) {
    constexpr int kChunks = kPanel * 2 / 16;
    for (int panel = 0; panel < Tile::PANELS; ++panel) {
      for (int i = first * kChunks + static_cast<int>(threadIdx.x % 32); i < end * kChunks; i += 32) {
        reinterpret_cast<uint4*>(v)[panel * Tile::BLOCK_KV * kChunks + i] = make_uint4(0, 0, 0, 0);
      }
    }
  }

  __device__ void load_query(const QueryTile& tile) {
    const int stage = slot_of<Tile::Q_STAGES>(queries_);
#pragma unroll 1
    for (int group = 0; group < Tile::ROW_GROUPS; ++group) {
      Barrier& full = shared_.q_full[stage][group];
      shared_.q_empty[stage][group].wait(parity_of<Tile::Q_STAGES>(queries_) ^ 1);
      if (leader_) {
        if constexpr (Tile::STORED_BY_SLOT) fence_proxy_async();  // the last tile's rows have passed through it
        shared_.tile[slot_of<Tile::TILE_SLOTS>(queries_)][group] = tile;
        if (!tile.valid()) {
          full.arrive();
        } else {
          full.arrive_expecting(Tile::Q_BYTES);
          copy_panels(shared_.q[stage][group], maps_.query, full, kWarpgroupRows, tile.row + group * kWarpgroupRows,
                      tile.head, tile.batch, evict_first_policy());
        }
      }
    }
    ++queries_;
  }

  __device__ void copy_panels(uint8_t* destination, const CUtensorMap& map, Barrier& full, int rows, int row, int head,
                              int batch, uint64_t policy) {
#pragma unroll
    for (int panel = 0; panel < Tile::PANELS; ++panel) {
      copy_box(destination + panel * rows * kPanel * 2, map, full, panel * kPanel, row, head, batch, policy);
    }
  }

  const ForwardMaps& maps_;
  const ForwardParams& p_;
  SharedStorage<Tile>& shared_;
  const bool leader_;
  int keys_ = 0, queries_ = 0;  // numbers of the next ones to load
  uint32_t landed_parity_ = 0;
};

// Streams attn_bias and attn_mask for exactly the steps of OperandLoader: tiles warpgroup by warpgroup, and the vector
// that all rows share.
template <class Tile>
class TermLoader {
 public:
  __device__ TermLoader(const ForwardMaps& maps, const ForwardParams& p, SharedStorage<Tile>& shared)
      : maps_(maps), p_(p), shared_(shared) {}

  // By a whole warp.
  __device__ void run() {
    const TermSources<Tile> sources(p_);
    if (!sources.streamed()) return;
    const bool leader = threadIdx.x % 32 == 0;
    const int bytes = (sources.bias_tiles() ? Tile::BIAS_BYTES : 0) + (sources.mask_tiles() ? Tile::MASK_BYTES : 0);
    int number = 0;
    TileWalk<Tile::BLOCK_Q, Tile::BLOCK_KV> tiles(p_);
    while (true) {
      const QueryTile tile = tiles.next();
      if (!tile.valid()) return;
      BlockWalk<Tile> walk(p_, tile);
      while (!walk.done()) {
        const int column = walk.next(p_, tile).block * Tile::BLOCK_KV;
        const int stage = slot_of<Tile::TERM_STAGES>(number);
        const uint32_t parity = parity_of<Tile::TERM_STAGES>(number) ^ 1;
        if (sources.keys()) {
          for (int group = 0; group < Tile::WARPGROUPS; ++group) shared_.term_empty[stage][group].wait(parity);
          write_keys(tile, column, stage);
        }
        for (int group = 0; group < Tile::WARPGROUPS; ++group) {
          Barrier& full = shared_.term_full[stage][group];
          shared_.term_empty[stage][group].wait(parity);
          if (leader) {
            full.arrive_expecting(bytes);
            copy_tiles(tile, tile.row + group * kWarpgroupRows, column, stage, group, sources);
          }
        }
        __syncwarp();
        ++number;
      }
    }
  }

 private:
  __device__ void copy_tiles(const QueryTile& tile, int row, int column, int stage, int group,
                             const TermSources<Tile>& sources) {
    Barrier& full = shared_.term_full[stage][group];
    if (sources.bias_tiles()) {
      for (int panel = 0; panel < Tile::BLOCK_KV / kPanel; ++panel) {
        copy_box(shared_.terms.bias[stage][group] + panel * kWarpgroupRows * kPanel * 2, maps_.bias, full,
                 column + panel * kPanel, row, tile.head * p_.bias.tile_head, tile.batch * p_.bias.tile_batch,
                 evict_last_policy());
      }
    }
    if (sources.mask_tiles()) {
      copy_box(shared_.terms.mask[stage][group], maps_.mask, full, column, row, tile.head * p_.mask.tile_head,
               tile.batch * p_.mask.tile_batch, evict_last_policy());
    }
  }

  __device__ void write_keys(const QueryTile& tile, int column, int stage) {
#pragma unroll
    for (int i = threadIdx.x % 32; i < Tile::BLOCK_KV; i += 32) {
      shared_.terms.keys[stage][i] = key_term<Tile>(p_, tile, int64_t{column} + i);
    }
    __syncwarp();
  }

  const ForwardMaps& maps_;
  const ForwardParams& p_;
  SharedStorage<Tile>& shared_;
};

template <class Tile>
__device__ void answer_empty_tiles(const ForwardParams& p) {
  using Chunk = uint4;
  constexpr int kChunk = sizeof(Chunk) / sizeof(typename Tile::Element);
  const int lane = threadIdx.x % 32;
  TileWalk<Tile::BLOCK_Q, Tile::BLOCK_KV> tiles(p);
  while (true) {
    const QueryTile tile = tiles.next();
    if (!tile.valid()) return;
    if (!BlockWalk<Tile>(p, tile).done()) continue;
    const float lse = p.sinks != nullptr ? p.sinks[tile.head * p.sinks_stride] : -INFINITY;
    for (int row = tile.row; row < min(tile.row + Tile::BLOCK_Q, p.q_len); ++row) {
      if (p.softmax_lse != nullptr && lane == 0) p.softmax_lse[lse_index(p, tile, row)] = lse;
      auto* output = output_row<typename Tile::Element>(p, tile, row);
      for (int column = lane * kChunk; column < p.v_head_size; column += 32 * kChunk) {
        *reinterpret_cast<Chunk*>(output + column) = Chunk{};
      }
    }
  }
}

}  // namespace ortflash::sm90

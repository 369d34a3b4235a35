// What lies in shared memory, and the rings that hand it from the producer to the consumers and back.
//
//             full                                  empty
//   q         its rows and its QueryTile are there  the tile's last Q K^T is done, or its   one for 64 rows
//                                                   output has passed through
//   k         a block of keys is there              Q K^T is done in every warpgroup
//   v         a block of values is there            P V is done in every warpgroup
//   term      a block's bias and mask are there     they have been read                     one a warpgroup
#pragma once

#include "ptx.cuh"
#include "schedule.cuh"

namespace ortflash::sm90 {

// Bias, mask and block mask of the next block of scores. What a kernel doesn't know has one element.
template <class Tile>
struct alignas(1024) TermTiles {
  template <int COUNT>
  static constexpr int or_one(bool known) {
    return known ? COUNT : 1;
  }
  static constexpr int BIAS = or_one<Tile::BIAS_BYTES>(Tile::BIAS_TILES);
  static constexpr int MASK = or_one<Tile::MASK_BYTES>(Tile::MASK_TILES);
  static constexpr int KEYS = or_one<Tile::BLOCK_KV>(Tile::KEY_TERMS);
  static constexpr int ROWS = or_one<kWarpgroupRows>(Tile::ANY_TERMS);

  // By the copy engine, or the bias by the warp that reads it.
  alignas(Tile::BIAS_TILES ? 1024 : 1) uint8_t bias[Tile::TERM_STAGES][Tile::WARPGROUPS][BIAS];  // panels [64 rows][64]
  alignas(Tile::MASK_TILES ? 1024
                           : 1) uint8_t mask[Tile::TERM_STAGES][Tile::WARPGROUPS][MASK];  // [64 rows][BLOCK_KV] bytes

  // By the loading warp: what all rows add.
  alignas(16) float keys[Tile::TERM_STAGES][KEYS];

  // By the warp that reads it: a bit a score.
  uint32_t mask_bits[Tile::WARPGROUPS][ROWS][Tile::BLOCK_KV / 32];
  uint32_t block_bits[Tile::WARPGROUPS][ROWS][Tile::BLOCK_KV / 32];
};
struct NoTermTiles {};

template <class Tile>
struct alignas(1024) SharedStorage {
  // Tiles of 16-bit elements are panels of 64 columns, 128-byte swizzled by the copy engine.
  uint8_t q[Tile::Q_STAGES][Tile::ROW_GROUPS][Tile::Q_BYTES];  // panels [64 rows][64]
  uint8_t k[Tile::KV_STAGES][Tile::KV_BYTES];                  // panels [BLOCK_KV][64]
  uint8_t v[Tile::KV_STAGES][Tile::KV_BYTES];
  alignas(Tile::SUM_BY_PRODUCT
              ? 1024
              : 1) uint8_t ones[Tile::SUM_BY_PRODUCT ? Tile::ONES_BYTES : 1];  // what P V multiplies to sum the rows
  typename Select<Tile::TERMS, TermTiles<Tile>, NoTermTiles>::Type terms;

  // More slots than Q has: a tile's description outlives its Q, until its rows are stored.
  QueryTile tile[Tile::TILE_SLOTS][Tile::ROW_GROUPS];
  int32_t step[Tile::KV_STAGES];  // KvStep::encode() of the block in k; only with BLOCK_MASK

  Barrier q_full[Tile::Q_STAGES][Tile::ROW_GROUPS], q_empty[Tile::Q_STAGES][Tile::ROW_GROUPS];
  Barrier k_full[Tile::KV_STAGES], k_empty[Tile::KV_STAGES];
  Barrier v_full[Tile::KV_STAGES], v_empty[Tile::KV_STAGES];
  Barrier v_landed;  // before the rows past key_lengths are zeroed
  Barrier term_full[Tile::TERM_STAGES][Tile::WARPGROUPS], term_empty[Tile::TERM_STAGES][Tile::WARPGROUPS];

  // By all threads. Only one column of the ones counts, and all of a panel is easier to write than that.
  __device__ void write_ones() {
    for (int i = threadIdx.x; i < Tile::ONES_BYTES / 4; i += Tile::THREADS) {
      reinterpret_cast<uint32_t*>(ones)[i] = pack<typename Tile::Element>(1.0f, 1.0f);
    }
    fence_proxy_async();
  }

  // By one thread, before anybody waits. One arrival fills a slot; lane 0 of each consuming warp empties it, or
  // every lane.
  __device__ void init_barriers() {
    for (int stage = 0; stage < Tile::Q_STAGES; ++stage) {
      for (int group = 0; group < Tile::ROW_GROUPS; ++group) {
        q_full[stage][group].init(1);
        q_empty[stage][group].init(4 * Tile::WARPGROUPS / Tile::ROW_GROUPS);
      }
    }
    for (int stage = 0; stage < Tile::KV_STAGES; ++stage) {
      k_full[stage].init(1);
      v_full[stage].init(1);
      k_empty[stage].init(4 * Tile::WARPGROUPS);
      v_empty[stage].init(4 * Tile::WARPGROUPS);
    }
    v_landed.init(1);
    for (int stage = 0; stage < Tile::TERM_STAGES; ++stage) {
      for (int group = 0; group < Tile::WARPGROUPS; ++group) {
        term_full[stage][group].init(1);
        term_empty[stage][group].init(Tile::LANES_GIVE_BACK ? 128 : 4);
      }
    }
    fence_barrier_init();
  }
};

// Everything that passes through a ring is numbered from 0. Number n lies in slot n % STAGES, and the parity of that
// slot's full barrier is that of its round; the producer waits for the opposite one on the empty barrier, which lets
// the first round through.
template <int STAGES>
__device__ __forceinline__ int slot_of(int number) {
  static_assert((STAGES & (STAGES - 1)) == 0, "numbers may wrap round");
  return number & (STAGES - 1);
}
template <int STAGES>
__device__ __forceinline__ uint32_t parity_of(int number) {
  return static_cast<uint32_t>(number) / STAGES & 1;
}

}  // namespace ortflash::sm90

// A consuming warpgroup: 64 query rows of each tile, and of the values all columns or its own part.
//
// The tensor cores and the softmax of one warpgroup overlap in two ways. Warpgroups take turns at issuing products, so
// that one computes weights while another one multiplies (Turns). And inside a warpgroup S' = Q K'^T of the next block
// is issued together with O += P V of this one, so that the softmax of S' runs beside P V. The next block may belong to
// the next tile: then its scores are computed while this tile's rows are stored.
#pragma once

#include "epilogue.cuh"
#include "online_softmax.cuh"
#include "score_terms.cuh"
#include "shared_storage.cuh"
#include "wgmma.cuh"

namespace ortflash::sm90 {

// Warpgroups issue their products one after the other, in a circle of named barriers.
template <int WARPGROUPS>
class Turns {
 public:
  __device__ __forceinline__ explicit Turns(int group) : group_(group) {
    if (group_ == WARPGROUPS - 1) pass();
  }
  __device__ __forceinline__ void wait() const { named_barrier_sync(1 + group_, 256); }
  __device__ __forceinline__ void pass() const { named_barrier_arrive(1 + (group_ + 1) % WARPGROUPS, 256); }
  // Takes the arrival that nobody waits for any more.
  __device__ __forceinline__ void close() const {
    if (group_ == 0) wait();
  }

 private:
  const int group_;
};
struct NoTurns {
  __device__ __forceinline__ explicit NoTurns(int) {}
  __device__ __forceinline__ void wait() const {}
  __device__ __forceinline__ void pass() const {}
  __device__ __forceinline__ void close() const {}
};

template <class Tile>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const ForwardParams& p, SharedStorage<Tile>& shared)
      : p_(p),
        shared_(shared),
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 1, 0)),
        leader_(threadIdx.x % 32 == 0),
        turns_(group_),
        terms_(p, shared, group_) {}

  __device__ __forceinline__ void run() {
    Scores s;         // scores, then weights in fp32
    Weights weights;  // the same weights in halves, as P V reads them
    Output o;
    float factor[2];

    const QueryTile* tile = next_tile();
    if (tile->valid()) wait_for_key();
    turns_.wait();
    issue_scores(s);  // of whatever lies there, where there is no tile: nobody reads it
    turns_.pass();
    wgmma_wait<0>();
    pin(s);
    Opening opening = open(*tile);
    while (uniform(tile->valid())) {
      OnlineSoftmax<Tile::LAZY, !Tile::SUM_BY_PRODUCT> softmax;
      if constexpr (!OPENS_EARLY) opening = open(*tile);
      KvStep step = sit_out(s, *tile, opening);
      const BlockRange clear = opening.clear;
      bool accumulate = false;  // whether o holds anything of this tile
      stage_terms(*tile, step);
      while (true) {
        // s: the scores of step. o: on its way to hold everything before it.
        release_key();
        if (step.last) {
          if constexpr (!Tile::STORED_BY_SLOT) release_query(queries_);
          ++queries_;
        }
        if constexpr (Tile::TERMS) terms_.apply(s, step, keys_ - 1);
        if (!clear.contains(step.block)) exclude_outside(s, *tile, first_row(*tile), step.block * Tile::BLOCK_KV);
        softmax.step(s, p_.scale_log2, factor);
        wgmma_wait<0>();
        pin(o);
        if (accumulate) {
          release_value(keys_ - 2);
          rescale(o, factor);
        }
        convert(s, weights);
        if (uniform(step.last)) break;

        wait_for_key();
        wait_for_value();
        step = peek(*tile, step.block);
        turns_.wait();
        issue_scores(s);
        issue_weighted(o, weights, accumulate);
        turns_.pass();
        accumulate = true;
        stage_terms(*tile, step);
        wgmma_wait<1>();
        pin(s);
      }

      const QueryTile* next = next_tile();
      if (next->valid()) wait_for_key();
      wait_for_value();
      turns_.wait();
      issue_weighted(o, weights, accumulate);
      issue_scores(s);
      turns_.pass();
      if constexpr (OPENS_EARLY) opening = open(*next);
      float inverse_sum[2];
      if constexpr (!Tile::SUM_BY_PRODUCT) {
        finish(softmax, softmax.row_sum[0], softmax.row_sum[1], *tile, inverse_sum);
      }
      wgmma_wait<1>();
      pin(o);
      release_value(keys_ - 1);
      if constexpr (Tile::SUM_BY_PRODUCT) {
        finish(softmax, o[Tile::O_COLUMNS / 2 - 4], o[Tile::O_COLUMNS / 2 - 2], *tile, inverse_sum);
      }
      store(o, inverse_sum, *tile);
      wgmma_wait<0>();
      pin(s);
      tile = next;
    }
    turns_.close();
  }

 private:
  using Scores = float[Tile::BLOCK_KV / 2];
  using Weights = uint32_t[Tile::BLOCK_KV / 4];
  using Output = float[Tile::O_COLUMNS / 2];

  // A condition that is the same in all lanes, in a form that lets the compiler know: products may not be issued
  // where it believes that a warp has split up.
  static __device__ __forceinline__ bool uniform(bool condition) { return __any_sync(~0u, condition); }

  __device__ __forceinline__ int row_group() const { return Tile::SAME_ROWS ? 0 : group_; }
  __device__ __forceinline__ int first_row(const QueryTile& tile) const {
    return tile.row + row_group() * kWarpgroupRows;
  }
  __device__ __forceinline__ int first_column() const { return Tile::SAME_ROWS ? group_ * Tile::V_COLUMNS : 0; }

  __device__ __forceinline__ void stage_terms(const QueryTile& tile, const KvStep& step) {
    if constexpr (Tile::ANY_TERMS) terms_.stage(tile, step, first_row(tile));
  }

  // What this warpgroup must know of a tile before it begins.
  struct Opening {
    KvStep step;       // the first
    int end;           // of the blocks that its rows see
    BlockRange clear;  // blocks that they see whole
  };
  // Asked for beside the last P V of the tile before, where there are registers to remember it.
  static constexpr bool OPENS_EARLY = Tile::WARPGROUPS < 3;
  __device__ __forceinline__ Opening open(const QueryTile& tile) const {
    return {peek(tile, tile.last_block), end_of_blocks<Tile::BLOCK_KV>(tile, first_row(tile), p_.q_len),
            BlockRange::clear<Tile::BLOCK_KV>(tile, first_row(tile))};
  }

  // Passes over the blocks at the end of the keys that none of this warpgroup's rows sees, though other warpgroups'
  // rows do; the tile's last step is never passed over. Their Q K^T is computed all the same, which keeps products out
  // of branches; softmax and P V are saved.
  __device__ __forceinline__ KvStep sit_out(Scores& s, const QueryTile& tile, const Opening& opening) {
    KvStep step = opening.step;
    while (uniform(step.block >= opening.end && !step.last)) {
      if constexpr (Tile::TERMS) terms_.skip(keys_);
      release_key();
      wait_for_key();
      step = peek(tile, step.block);
      turns_.wait();
      issue_scores(s);
      turns_.pass();
      wait_for_value();
      release_value(keys_ - 1);
      wgmma_wait<0>();
      pin(s);
    }
    return step;
  }

  // ---------------------------------------------------------------------------------------------- products
  // S = Q K^T of tile queries_ and block keys_.
  __device__ __forceinline__ void issue_scores(Scores& s) {
    const auto& q_smem = shared_.q[slot_of<Tile::Q_STAGES>(queries_)][row_group()];
    const auto& k_smem = shared_.k[slot_of<Tile::KV_STAGES>(keys_)];
    const uint64_t q = matrix_descriptor(opaque(smem_address(q_smem)), 16, 1024);
    const uint64_t k = matrix_descriptor(smem_address(k_smem), 16, 1024);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < Tile::HEAD / 16; ++j) {  // 16 columns: 32 bytes inside a panel
      const int inside = j % 4 * 32;
      Wgmma<typename Tile::Element, Tile::BLOCK_KV>::scores(s, q + (j / 4 * kWarpgroupRows * 128 + inside) / 16,
                                                            k + (j / 4 * Tile::BLOCK_KV * 128 + inside) / 16, j != 0);
    }
    wgmma_commit();
  }

  // O += P V of block keys_ - 1.
  __device__ __forceinline__ void issue_weighted(Output& o, const Weights& weights, bool accumulate) {
    const auto* v_smem =
        shared_.v[slot_of<Tile::KV_STAGES>(keys_ - 1)] + first_column() / kPanel * Tile::BLOCK_KV * 128;
    // From one panel of columns to the next; V of 64 columns is followed by the ones.
    const uint32_t panel =
        Tile::SUM_BY_PRODUCT ? smem_address(shared_.ones) - smem_address(v_smem) : Tile::BLOCK_KV * 128;
    const uint64_t v = matrix_descriptor(smem_address(v_smem), panel, 1024);
    pin(o);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < Tile::BLOCK_KV / 16; ++j) {  // 16 rows of 128 bytes
      Wgmma<typename Tile::Element, Tile::O_COLUMNS>::weighted(o, weights[4 * j], weights[4 * j + 1],
                                                               weights[4 * j + 2], weights[4 * j + 3],
                                                               v + j * 16 * 128 / 16, j != 0 || accumulate);
    }
    wgmma_commit();
  }

  // The accumulator of Q K^T is, repacked, the A operand of P V.
  static __device__ __forceinline__ void convert(const Scores& s, Weights& weights) {
#pragma unroll
    for (int i = 0; i < Tile::BLOCK_KV / 4; ++i) weights[i] = pack<typename Tile::Element>(s[2 * i], s[2 * i + 1]);
  }

  static __device__ __forceinline__ void rescale(Output& o, const float (&factor)[2]) {
    if constexpr (Tile::LAZY) {
      if (!__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) return;
    }
#pragma unroll
    for (int i = 0; i < Tile::O_COLUMNS / 2; ++i) o[i] *= factor[i / 2 & 1];
  }

  template <class Softmax>
  __device__ __forceinline__ void finish(const Softmax& softmax, float sum0, float sum1, const QueryTile& tile,
                                         float (&inverse_sum)[2]) const {
    finish_rows<Tile>(softmax, sum0, sum1, p_, tile, first_row(tile), first_column(), inverse_sum);
  }

  // The rows of tile queries_ - 1. No Q K^T reads its Q any more: warps that take turns have met since the last one.
  __device__ __forceinline__ void store(const Output& o, const float (&inverse_sum)[2], const QueryTile& tile) {
    if constexpr (Tile::STORED_BY_SLOT) {
      if constexpr (!Tile::TURNS) named_barrier_sync(1 + group_, 128);
      uint8_t* slot = shared_.q[slot_of<Tile::Q_STAGES>(queries_ - 1)][row_group()];
      store_rows_by_slot<Tile>(o, inverse_sum, p_, tile, first_row(tile), slot);
      release_query(queries_ - 1);
    } else {
      store_rows<Tile>(o, inverse_sum, p_, tile, first_row(tile), first_column());
    }
  }

  // -------------------------------------------------------------------------------------------------- rings
  // Waits for the tile that comes next, and its Q.
  __device__ __forceinline__ const QueryTile* next_tile() {
    shared_.q_full[slot_of<Tile::Q_STAGES>(queries_)][row_group()].wait(parity_of<Tile::Q_STAGES>(queries_));
    return &shared_.tile[slot_of<Tile::TILE_SLOTS>(queries_)][row_group()];
  }
  __device__ __forceinline__ void wait_for_key() {
    shared_.k_full[slot_of<Tile::KV_STAGES>(keys_)].wait(parity_of<Tile::KV_STAGES>(keys_));
  }
  __device__ __forceinline__ void wait_for_value() {
    shared_.v_full[slot_of<Tile::KV_STAGES>(keys_ - 1)].wait(parity_of<Tile::KV_STAGES>(keys_ - 1));
  }

  // Which block has number keys_; `above` is the one before.
  __device__ __forceinline__ KvStep peek(const QueryTile& tile, int above) const {
    if constexpr (Tile::BLOCK_MASK) {  // read by the lane that hands the slot back
      const int32_t code = leader_ ? shared_.step[slot_of<Tile::KV_STAGES>(keys_)] : 0;
      return KvStep::decode(__shfl_sync(~0u, code, 0));
    }
    return {above - 1, above - 1 == tile.first_block, false};
  }

  // Gives back what the products that read it have finished with.
  __device__ __forceinline__ void release_key() {
    if (leader_) shared_.k_empty[slot_of<Tile::KV_STAGES>(keys_)].arrive();
    ++keys_;
  }
  __device__ __forceinline__ void release_value(int number) {
    if (leader_) shared_.v_empty[slot_of<Tile::KV_STAGES>(number)].arrive();
  }
  __device__ __forceinline__ void release_query(int number) {
    if (leader_) shared_.q_empty[slot_of<Tile::Q_STAGES>(number)][row_group()].arrive();
  }

  const ForwardParams& p_;
  SharedStorage<Tile>& shared_;
  const int group_;
  const bool leader_;
  const typename Select<Tile::TURNS, Turns<Tile::WARPGROUPS>, NoTurns>::Type turns_;
  int queries_ = 0;  // the tile whose Q K^T comes next
  int keys_ = 0;     // the block whose Q K^T comes next; the values that wait for P V are number keys_ - 1
  typename Select<Tile::TERMS, ScoreTerms<Tile>, NoScoreTerms<Tile>>::Type terms_;
};

}  // namespace ortflash::sm90

// The gradients of a call, tile by tile (attention_grad.h has the equations). Included after tile_attention.h by each
// tile_*.cc, in that file's own copy. Tiles are transposed as in the forward: [key][row], rows along the lanes.
//
//   for each chunk of keys, each head that reads them, each tile of rows that sees them, each tile of the chunk's keys:
//     S^T = K (scale Q)^T;  cap, bias, mask, limits;  P^T = exp(S^T - lse);  dP^T = V dO^T;  dropout on both
//     dV += P^T dO;  dS^T = P^T (dP^T - delta);  mask and slope of the cap
//     dK += dS^T (scale Q);  dQ += dS K
#pragma once

#include <initializer_list>

#include "grad_kernel.h"
#include "grad_products.h"
#include "tile_attention.h"

namespace ortflash::cpu {
namespace {

// fp32 buffers of a thread. D and E are padded_size() of the head sizes; a tile is (kGradKeys, kGradRows).
struct GradScratch {
  float* key;         // (chunk_keys, D)
  float* value;       // (chunk_keys, E)
  float* d_key;       // (chunk_keys, D)
  float* d_value;     // (chunk_keys, E)
  float* query;       // (kGradRows, D), times scale
  float* query_t;     // (D, kGradRows), likewise
  float* d_output;    // (kGradRows, E)
  float* d_output_t;  // (E, kGradRows)
  float* scores;      // tile: S, then P
  float* d_scores;    // tile: dP, then dS
  float* slope;       // tile: 1 - tanh^2, with a softcap
  float* drop;        // tile: dropout's factors
  float* bias;        // tile
  float* mask;        // tile
  float* bias_sum;    // tile of d_attn_bias

  int64_t lay_out(const AttentionGradParams& params, void* start) {
    const AttentionParams& p = params.forward;
    const GradPlan plan = make_grad_plan(params);
    const int64_t head = padded_size(p.head_size), v_head = padded_size(p.v_head_size);
    int64_t used = 0;
    const auto take = [&](float** buffer, int64_t count) {
      if (start != nullptr) *buffer = reinterpret_cast<float*>(static_cast<char*>(start) + used);
      used += round_up(count * static_cast<int64_t>(sizeof(float)), 256);
    };
    constexpr int64_t kTile = kGradKeys * kGradRows;
    for (float** buffer : {&key, &d_key}) take(buffer, plan.chunk_keys * head);
    for (float** buffer : {&value, &d_value}) take(buffer, plan.chunk_keys * v_head);
    for (float** buffer : {&query, &query_t}) take(buffer, kGradRows * head);
    for (float** buffer : {&d_output, &d_output_t}) take(buffer, kGradRows * v_head);
    for (float** buffer : {&scores, &d_scores}) take(buffer, kTile);
    take(&slope, p.softcap > 0 ? kTile : 0);
    take(&drop, p.dropout_p > 0 ? kTile : 0);
    take(&bias, p.attn_bias != nullptr ? kTile : 0);
    take(&mask, p.attn_mask != nullptr ? kTile : 0);
    take(&bias_sum, params.d_attn_bias != nullptr ? kTile : 0);
    return used;
  }
};

inline KeyRange intersect(KeyRange a, KeyRange b) {
  return {a.first > b.first ? a.first : b.first, a.last < b.last ? a.last : b.last};
}

// The row of lane 0 in a (B,N,S,...) tensor.
inline int64_t first_offset(const Item& item, const Strides& strides) {
  return item.batch * strides.batch + item.first_head * strides.head + item.first_row * strides.row;
}

// Rows of keys [keys.first, keys.last) of a key/value head as fp32 in `to`, padded.
inline void load_keys(DType dtype, const void* tensor, const Strides& strides, int64_t batch, int64_t kv_head,
                      KeyRange keys, int64_t head_size, float* to) {
  const int64_t offset = batch * strides.batch + kv_head * strides.head + keys.first * strides.row;
  with_type(dtype, tensor, offset, [&](const auto* from) {
    load_rows(from, strides.row, keys.last - keys.first, head_size, padded_size(head_size), to);
  });
}

// A tile of rows of one head, and the numbers that each has.
struct GradRows {
  static constexpr int kWidth = static_cast<int>(kGradRows);

  Item item;
  PassRows<kWidth> rows;
  ScoreRows<kWidth> bias;
  ScoreRows<kWidth> mask;
  alignas(64) float lse[kWidth];  // +inf where nothing takes part, so that exp(S - lse) is 0
  alignas(64) float factor[kWidth];
  alignas(64) float delta[kWidth];

  GradRows(const GradCall& call, int64_t batch, int64_t head, int64_t tile) {
    const AttentionParams& p = call.params.forward;
    item = row_item(p, call.plan, batch, head, tile);
    rows.set(p, item, 0);
    if (p.attn_bias != nullptr) bias.set(rows, p.bias_strides);
    if (p.attn_mask != nullptr) mask.set(rows, p.mask_strides);
    for (int lane = 0; lane < kWidth; ++lane) {
      const int64_t index = call.row_index(batch, head, rows.row[lane]);
      lse[lane] = p.softmax_lse[index] == -kInfinity ? kInfinity : p.softmax_lse[index];
      factor[lane] = call.row_factor[index];
      delta[lane] = call.delta[index];
    }
  }

  void load_query(const AttentionParams& p, const GradScratch& scratch) const {
    const float scale = scale_of(p);
    const int64_t width = padded_size(p.head_size);
    int64_t offsets[kWidth];
    rows.offsets(p.query_strides, offsets);
    with_type(p.dtype, p.query, 0, [&](const auto* from) {
      load_transposed(from, offsets, 1, rows.count, p.head_size, scale, kWidth, scratch.query_t);
      load_rows(from + offsets[0], p.query_strides.row, rows.count, p.head_size, width, scratch.query);
    });
    for (int64_t i = 0; i < rows.count * width; i += kLanes) {
      store(scratch.query + i, mul(load(scratch.query + i), broadcast(scale)));
    }
  }

  void load_d_output(const AttentionGradParams& params, const GradScratch& scratch) const {
    const AttentionParams& p = params.forward;
    int64_t offsets[kWidth];
    rows.offsets(params.d_output_strides, offsets);
    with_type(p.dtype, params.d_output, 0, [&](const auto* from) {
      load_transposed(from, offsets, 1, rows.count, p.v_head_size, 1.0f, kWidth, scratch.d_output_t);
      load_rows(from + offsets[0], params.d_output_strides.row, rows.count, p.v_head_size, padded_size(p.v_head_size),
                scratch.d_output);
    });
  }

  // scratch.scores = P of the tile, before dropout; `key` is the tile's first row. Fills scratch.slope with a softcap.
  void weigh(const AttentionParams& p, const MaskTile<kWidth>& mask_tile, KeyRange tile, const float* key,
             const GradScratch& scratch) const {
    const int64_t keys = tile.last - tile.first, count = keys * kWidth;
    product<false>({key, padded_size(p.head_size), 1}, keys, p.head_size, scratch.query_t, kWidth, kWidth,
                   scratch.scores, kWidth);
    if (p.softcap > 0) {
      cap_scores(scratch.scores, count, p.softcap);
      const Vec inverse = broadcast(1.0f / p.softcap);
      for (int64_t i = 0; i < count; i += kLanes) {
        const Vec tanh = mul(load(scratch.scores + i), inverse);
        store(scratch.slope + i, mul(sub(broadcast(1.0f), tanh), add(broadcast(1.0f), tanh)));
      }
    }
    if (p.attn_bias != nullptr) add_bias(p, bias, rows.count, tile, scratch.bias, scratch.scores);
    mask_tile.apply(scratch.scores);
    rows.limit(scratch.scores, tile);
    for (int64_t j = 0; j < keys; ++j) {
      for (int lane = 0; lane < kWidth; lane += kLanes) {
        float* const score = scratch.scores + j * kWidth + lane;
        store(score, mul(exp_of_nonpositive(sub(load(score), load(lse + lane))), load(factor + lane)));
      }
    }
  }

  // scratch.d_scores = dS of the tile, from P, which is then P * Z; `value` is the tile's first row.
  void differentiate(const AttentionParams& p, const MaskTile<kWidth>& mask_tile, KeyRange tile, const float* value,
                     const GradScratch& scratch) const {
    const int64_t keys = tile.last - tile.first, count = keys * kWidth;
    product<false>({value, padded_size(p.v_head_size), 1}, keys, p.v_head_size, scratch.d_output_t, kWidth, kWidth,
                   scratch.d_scores, kWidth);
    if (p.dropout_p > 0) {
      dropout_factors(p, rows, tile, scratch.drop);
      drop(scratch.d_scores, count, scratch.drop);
    }
    for (int64_t j = 0; j < keys; ++j) {
      for (int lane = 0; lane < kWidth; lane += kLanes) {
        const int64_t i = j * kWidth + lane;
        store(scratch.d_scores + i, mul(load(scratch.scores + i), sub(load(scratch.d_scores + i), load(delta + lane))));
      }
    }
    if (p.dropout_p > 0) drop(scratch.scores, count, scratch.drop);
    // With a fill of -inf the weights are 0 already.
    if (p.mask_fill != -kInfinity) mask_tile.clear(scratch.d_scores);
  }
};

// Visits the tiles of `keys` that a row of `rows` may see and the masks don't leave out.
template <class Visit>
void for_each_tile(const AttentionParams& p, const GradRows& rows, KeyRange keys, const GradScratch& scratch,
                   Visit visit) {
  TileWalk walk(p, rows.item, intersect(keys, rows.rows.seen_by_any), kGradKeys);
  KeyRange tile;
  while (walk.next(&tile)) {
    const MaskTile<GradRows::kWidth> mask(p, rows.mask, rows.rows.count, tile, scratch.mask);
    if (!mask.empty()) visit(tile, mask);
  }
}

// In a row with a large log-sum-exp, the factor that makes the sum of its weights (and its sink's) 1.
inline void normalise(const GradCall& call, GradRows& rows, const GradScratch& scratch) {
  const AttentionParams& p = call.params.forward;
  const Item& item = rows.item;
  const int64_t kv_head = item.first_head / (p.num_heads / p.kv_num_heads);
  alignas(64) float sums[GradRows::kWidth];
  for (int lane = 0; lane < GradRows::kWidth; ++lane) {
    const float sink = p.sinks == nullptr ? -kInfinity : p.sinks[item.first_head * p.sinks_stride];
    sums[lane] = ::expf(sink - rows.lse[lane]);
  }
  rows.load_query(p, scratch);
  for_each_tile(p, rows, item.keys, scratch, [&](KeyRange tile, const MaskTile<GradRows::kWidth>& mask) {
    load_keys(p.dtype, p.key, p.key_strides, item.batch, kv_head, tile, p.head_size, scratch.key);
    rows.weigh(p, mask, tile, scratch.key, scratch);
    for (int64_t j = 0; j < tile.last - tile.first; ++j) {
      for (int lane = 0; lane < GradRows::kWidth; lane += kLanes) {
        store(sums + lane, add(load(sums + lane), load(scratch.scores + j * GradRows::kWidth + lane)));
      }
    }
  });
  for (int64_t lane = 0; lane < rows.rows.count; ++lane) {
    if (!(::fabsf(rows.lse[lane]) >= kLargeLse && sums[lane] > 0)) continue;
    call.row_factor[call.row_index(item.batch, item.first_head, rows.rows.row[lane])] = 1.0f / sums[lane];
  }
}

void prepare_rows(const GradCall& call, int64_t index, void* memory) {
  const AttentionGradParams& params = call.params;
  const AttentionParams& p = params.forward;
  GradScratch scratch;
  scratch.lay_out(params, memory);
  const int64_t head = index / call.plan.row_tiles;
  const int64_t batch = head / p.num_heads, tile = index % call.plan.row_tiles;
  const Item item = row_item(p, call.plan, batch, head % p.num_heads, tile);
  const int64_t width = padded_size(p.v_head_size);
  const auto load_output = [&](const void* tensor, const Strides& strides, float* to) {
    with_type(p.dtype, tensor, first_offset(item, strides),
              [&](const auto* from) { load_rows(from, strides.row, item.rows, p.v_head_size, width, to); });
  };
  load_output(p.output, p.output_strides, scratch.d_output_t);
  load_output(params.d_output, params.d_output_strides, scratch.d_output);
  bool large = false;
  for (int64_t i = 0; i < item.rows; ++i) {
    const int64_t row = call.row_index(batch, item.first_head, item.first_row + i);
    float sum = 0.0f;
    for (int64_t e = 0; e < p.v_head_size; ++e) {
      sum += scratch.d_output[i * width + e] * scratch.d_output_t[i * width + e];
    }
    call.delta[row] = sum;
    call.row_factor[row] = 1.0f;
    const float size = ::fabsf(p.softmax_lse[row]);
    large = large || (size >= kLargeLse && size < kInfinity);
  }
  if (!large) return;
  GradRows rows(call, batch, item.first_head, tile);
  normalise(call, rows, scratch);
}

void accumulate_keys(const GradCall& call, int64_t index, void* memory) {
  const AttentionGradParams& params = call.params;
  const AttentionParams& p = params.forward;
  const GradPlan& plan = call.plan;
  GradScratch scratch;
  scratch.lay_out(params, memory);
  const int64_t split = index % plan.splits;
  const int64_t batch = index / plan.splits / p.kv_num_heads, kv_head = index / plan.splits % p.kv_num_heads;
  const int64_t group = p.num_heads / p.kv_num_heads;
  const int64_t head_size = padded_size(p.head_size), v_head_size = padded_size(p.v_head_size);
  std::memset(call.d_query_rows(split, batch, kv_head * group, 0), 0,
              static_cast<size_t>(group * p.q_len * head_size) * sizeof(float));

  for (int64_t chunk = split; chunk < plan.chunks; chunk += plan.splits) {
    const KeyRange keys = intersect({chunk * plan.chunk_keys, (chunk + 1) * plan.chunk_keys}, {0, p.kv_len});
    load_keys(p.dtype, p.key, p.key_strides, batch, kv_head, keys, p.head_size, scratch.key);
    load_keys(p.dtype, p.value, p.value_strides, batch, kv_head, keys, p.v_head_size, scratch.value);
    std::memset(scratch.d_key, 0, static_cast<size_t>(plan.chunk_keys * head_size) * sizeof(float));
    std::memset(scratch.d_value, 0, static_cast<size_t>(plan.chunk_keys * v_head_size) * sizeof(float));
    for (int64_t i = 0; i < group * plan.row_tiles; ++i) {
      const GradRows rows(call, batch, kv_head * group + i / plan.row_tiles, i % plan.row_tiles);
      float* const d_query = call.d_query_rows(split, batch, rows.item.first_head, rows.item.first_row);
      const int64_t count = rows.rows.count;
      constexpr int64_t kWidth = GradRows::kWidth;
      bool loaded = false;
      for_each_tile(p, rows, keys, scratch, [&](KeyRange tile, const MaskTile<GradRows::kWidth>& mask) {
        if (!loaded) {
          rows.load_query(p, scratch);
          rows.load_d_output(params, scratch);
          loaded = true;
        }
        const int64_t first = tile.first - keys.first, tile_keys = tile.last - tile.first;
        rows.weigh(p, mask, tile, scratch.key + first * head_size, scratch);
        rows.differentiate(p, mask, tile, scratch.value + first * v_head_size, scratch);
        product<true>({scratch.scores, kWidth, 1}, tile_keys, count, scratch.d_output, v_head_size, v_head_size,
                      scratch.d_value + first * v_head_size, v_head_size);
        if (p.softcap > 0) drop(scratch.d_scores, tile_keys * kWidth, scratch.slope);
        product<true>({scratch.d_scores, kWidth, 1}, tile_keys, count, scratch.query, head_size, head_size,
                      scratch.d_key + first * head_size, head_size);
        product<true>({scratch.d_scores, 1, kWidth}, count, tile_keys, scratch.key + first * head_size, head_size,
                      head_size, d_query, head_size);
      });
    }
    const auto store_keys = [&](void* tensor, const Strides& strides, int64_t size, const float* from) {
      with_type(p.dtype, tensor, batch * strides.batch + kv_head * strides.head + keys.first * strides.row,
                [&](auto* to) {
                  for (int64_t j = 0; j < keys.last - keys.first; ++j) {
                    store_row(from + j * padded_size(size), 1.0f, size, to + j * strides.row);
                  }
                });
    };
    store_keys(params.d_key, params.d_key_strides, p.head_size, scratch.d_key);
    store_keys(params.d_value, params.d_value_strides, p.v_head_size, scratch.d_value);
  }
}

void finish_query(const GradCall& call, int64_t index, void* memory) {
  const AttentionGradParams& params = call.params;
  const AttentionParams& p = params.forward;
  GradScratch scratch;
  scratch.lay_out(params, memory);
  const int64_t head = index / call.plan.row_tiles;
  const Item item = row_item(p, call.plan, head / p.num_heads, head % p.num_heads, index % call.plan.row_tiles);
  const int64_t width = padded_size(p.head_size);
  for (int64_t i = 0; i < item.rows; ++i) {
    const int64_t row = item.first_row + i;
    const float* sum = call.d_query_rows(0, item.batch, item.first_head, row);
    for (int64_t split = 1; split < call.plan.splits; ++split) {
      const float* more = call.d_query_rows(split, item.batch, item.first_head, row);
      for (int64_t d = 0; d < width; d += kLanes) store(scratch.query + d, add(load(sum + d), load(more + d)));
      sum = scratch.query;
    }
    with_type(p.dtype, params.d_query, first_offset(item, params.d_query_strides) + i * params.d_query_strides.row,
              [&](auto* to) { store_row(sum, scale_of(p), p.head_size, to); });
  }
}

// One tile of d_attn_bias: the sum over everything that the bias is broadcast along. bias_sum (kGradKeys, kGradRows)
// has row 0 only where it is broadcast along the keys, lane 0 only where along the rows.
struct BiasTile {
  const GradCall& call;
  GradScratch scratch;
  int64_t batch, head, row_tile, key_tile;  // -1 = all of them

  void add_rows(int64_t b, int64_t n, int64_t tile) const {
    constexpr int64_t kWidth = GradRows::kWidth;
    const AttentionGradParams& params = call.params;
    const AttentionParams& p = params.forward;
    const GradRows rows(call, b, n, tile);
    const int64_t kv_head = n / (p.num_heads / p.kv_num_heads);
    const KeyRange keys =
        key_tile < 0 ? KeyRange{0, p.kv_len} : KeyRange{key_tile * kGradKeys, (key_tile + 1) * kGradKeys};
    bool loaded = false;
    for_each_tile(p, rows, keys, scratch, [&](KeyRange part, const MaskTile<GradRows::kWidth>& mask) {
      if (!loaded) {
        rows.load_query(p, scratch);
        rows.load_d_output(params, scratch);
        loaded = true;
      }
      load_keys(p.dtype, p.key, p.key_strides, b, kv_head, part, p.head_size, scratch.key);
      load_keys(p.dtype, p.value, p.value_strides, b, kv_head, part, p.v_head_size, scratch.value);
      rows.weigh(p, mask, part, scratch.key, scratch);
      rows.differentiate(p, mask, part, scratch.value, scratch);
      for (int64_t j = 0; j < part.last - part.first; ++j) {
        float* const to = scratch.bias_sum + (key_tile < 0 ? 0 : (part.first - keys.first + j) * kWidth);
        const float* const from = scratch.d_scores + j * kWidth;
        if (row_tile < 0) {
          float sum = 0.0f;
          for (int64_t lane = 0; lane < rows.rows.count; ++lane) sum += from[lane];
          to[0] += sum;
        } else {
          for (int64_t lane = 0; lane < kWidth; lane += kLanes)
            store(to + lane, add(load(to + lane), load(from + lane)));
        }
      }
    });
  }

  void write() const {
    const AttentionGradParams& params = call.params;
    const AttentionParams& p = params.forward;
    const Strides& strides = params.d_bias_strides;
    const int64_t first_row = row_tile < 0 ? 0 : row_tile * call.plan.tile_rows;
    const int64_t first_key = key_tile < 0 ? 0 : key_tile * kGradKeys;
    const int64_t rows = row_tile < 0 ? 1 : smallest(call.plan.tile_rows, p.q_len - first_row);
    const int64_t keys = key_tile < 0 ? 1 : smallest(kGradKeys, p.kv_len - first_key);
    const int64_t offset = (batch < 0 ? 0 : batch) * strides.batch + (head < 0 ? 0 : head) * strides.head +
                           first_row * strides.row + first_key * strides.column;
    with_type(p.bias_dtype, params.d_attn_bias, offset, [&](auto* to) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < keys; ++j) {
          store_some(to + i * strides.row + j * strides.column, broadcast(scratch.bias_sum[j * GradRows::kWidth + i]),
                     1);
        }
      }
    });
  }

  static int64_t smallest(int64_t a, int64_t b) { return a < b ? a : b; }
};

void bias_tile(const GradCall& call, int64_t index, void* memory) {
  const AttentionParams& p = call.params.forward;
  const GradPlan& plan = call.plan;
  const Strides& strides = call.params.d_bias_strides;
  BiasTile tile{call, {}, -1, -1, -1, -1};
  tile.scratch.lay_out(call.params, memory);
  std::memset(tile.scratch.bias_sum, 0, static_cast<size_t>(kGradKeys * kGradRows) * sizeof(float));
  if (strides.column != 0) tile.key_tile = index % plan.bias_key_tiles;
  index /= plan.bias_key_tiles;
  if (strides.row != 0) tile.row_tile = index % plan.bias_row_tiles;
  index /= plan.bias_row_tiles;
  if (strides.head != 0) tile.head = index % plan.bias_heads;
  if (strides.batch != 0) tile.batch = index / plan.bias_heads;
  const auto range = [](int64_t one, int64_t all) { return one < 0 ? KeyRange{0, all} : KeyRange{one, one + 1}; };
  const KeyRange batches = range(tile.batch, p.batch), heads = range(tile.head, p.num_heads);
  const KeyRange row_tiles = range(tile.row_tile, plan.row_tiles);
  for (int64_t b = batches.first; b < batches.last; ++b) {
    for (int64_t n = heads.first; n < heads.last; ++n) {
      for (int64_t t = row_tiles.first; t < row_tiles.last; ++t) tile.add_rows(b, n, t);
    }
  }
  tile.write();
}

size_t grad_scratch_bytes(const AttentionGradParams& params) {
  return static_cast<size_t>(GradScratch().lay_out(params, nullptr));
}

constexpr GradKernel kGradKernel = {grad_scratch_bytes, prepare_rows, accumulate_keys, finish_query, bias_tile};

}  // namespace
}  // namespace ortflash::cpu

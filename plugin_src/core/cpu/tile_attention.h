// The attention of one Item, tile by tile. Included after a vec_*.h by each tile_*.cc, in that file's own copy.
//
//   for each tile of keys that any row can see:
//     S^T = K (scale Q)^T;  cap, bias, mask, limits
//     P^T = exp(S^T - max);  dropout;  O^T = correction O^T + V^T P^T
//   O = (O^T / sum)^T
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "dropout_tile.h"
#include "few_products.h"
#include "pass_rows.h"
#include "score_tensors.h"
#include "tile_kernel.h"
#include "tile_products.h"
#include "tile_softmax.h"
#include "tile_walk.h"

namespace ortflash::cpu {
namespace {

constexpr int64_t kTileKeys = 64;  // 96 and 128 are as fast, 192 is 2 % slower; causal calls prefer small tiles
// Most queries of an Item. They share the loaded keys and values. Time of 12 heads of 64, 1,024 keys, row stride 3 KB:
// 30.9 ms with 128 queries, 27.2 with 256, 26.1 with 512 (one Sapphire Rapids core, 2 MB of L2; 2026-11).
constexpr int64_t kMaxRows = 512;
constexpr int64_t kMaxPasses = kMaxRows / (kMaxVectors * kLanes);
static_assert(kMaxRows % (kMaxVectors * kLanes) == 0, "full passes");

constexpr int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// fp32 buffers of a thread, each a multiple of 256 bytes. D = head_size and E = v_head_size, rounded up to kLanes.
struct Scratch {
  float* query;   // kMaxRows queries of D
  float* output;  // kMaxRows outputs of E
  float* scores;  // (kTileKeys, pass rows)
  float* key;     // (kTileKeys, D)
  float* value;   // (kTileKeys, E)
  float* bias;    // (kTileKeys, pass rows)
  float* mask;    // (kTileKeys, pass rows)
  float* drop;    // (kTileKeys, pass rows): dropout's factors

  // Lays the buffers out from `start`; returns the bytes they take. A null start only counts.
  int64_t lay_out(const AttentionParams& p, void* start) {
    int64_t used = 0;
    const auto take = [&](float** buffer, int64_t count) {
      if (start != nullptr) *buffer = reinterpret_cast<float*>(static_cast<char*>(start) + used);
      used += round_up(count * static_cast<int64_t>(sizeof(float)), 256);
    };
    const int64_t tile = kTileKeys * kMaxVectors * kLanes;
    take(&query, kMaxRows * round_up(p.head_size, kLanes));
    take(&output, kMaxRows * round_up(p.v_head_size, kLanes));
    take(&scores, tile);
    take(&key, kTileKeys * round_up(p.head_size, kLanes));
    take(&value, kTileKeys * round_up(p.v_head_size, kLanes));
    take(&bias, p.attn_bias != nullptr ? tile : 0);
    take(&mask, p.attn_mask != nullptr ? tile : 0);
    take(&drop, p.dropout_p > 0 ? tile : 0);
    return used;
  }
};

// A tile of keys or values as fp32 rows.
struct Rows {
  const float* data;
  int64_t stride;
};

// Products for many queries: query and output are transposed, (D or E, kWidth), and no width of key is wrong.
template <int kVectors>
struct ManyQueries {
  static constexpr int kWidth = kVectors * kLanes;

  static int64_t padded(int64_t head_size) { return head_size; }
  // Rows far apart share few cache sets and many pages: from three passes on, one copy for all of them is faster.
  static bool in_place(int64_t stride, int64_t head_size, int64_t passes) { return stride == head_size || passes < 3; }

  template <class T>
  static void load_query(const T* query, const int64_t* offsets, int64_t count, int64_t head_size, float scale,
                         float* to) {
    load_transposed(query, offsets, 1, count, head_size, scale, kWidth, to);
  }
  static void score(Rows key, int64_t keys, const float* query, int64_t head_size, float* scores) {
    score_tile<kVectors>(key.data, key.stride, keys, query, head_size, scores);
  }
  static void accumulate(Rows value, int64_t keys, const float* weights, const float* correction, int64_t v_head_size,
                         float* output) {
    output_tile<kVectors>(value.data, value.stride, keys, weights, correction, v_head_size, output);
  }
  template <class T>
  static void store_output(const float* output, const float* factors, int64_t count, int64_t v_head_size, T* to,
                           const int64_t* offsets) {
    store_transposed(output, kWidth, factors, count, v_head_size, to, offsets);
  }
};

// Products for 1, 2 or 4 queries: query and output are rows, D and E rounded up to kLanes.
template <int kRows>
struct FewQueries {
  static constexpr int kWidth = kLanes;

  static int64_t padded(int64_t head_size) { return round_up(head_size, kLanes); }
  static bool in_place(int64_t, int64_t head_size, int64_t) { return head_size % kLanes == 0; }

  template <class T>
  static void load_query(const T* query, const int64_t* offsets, int64_t count, int64_t head_size, float scale,
                         float* to) {
    const int64_t width = padded(head_size);
    for (int64_t r = 0; r < kRows; ++r) {  // a third query of four is followed by itself
      float* row = to + r * width;
      load_rows(query + offsets[r < count ? r : count - 1], 0, 1, head_size, width, row);
      for (int64_t d = 0; d < width; ++d) row[d] *= scale;
    }
  }
  static void score(Rows key, int64_t keys, const float* query, int64_t head_size, float* scores) {
    score_few<kRows>(key.data, key.stride, keys, query, padded(head_size), scores);
  }
  static void accumulate(Rows value, int64_t keys, const float* weights, const float* correction, int64_t v_head_size,
                         float* output) {
    output_few<kRows>(value.data, value.stride, keys, weights, correction, padded(v_head_size), output);
  }
  template <class T>
  static void store_output(const float* output, const float* factors, int64_t count, int64_t v_head_size, T* to,
                           const int64_t* offsets) {
    for (int64_t r = 0; r < count; ++r) {
      store_row(output + r * padded(v_head_size), factors[r], v_head_size, to + offsets[r]);
    }
  }
};

// The tile as it lies in the tensor where that serves `passes` passes well, else a copy of it in `buffer`.
template <class Products>
Rows fp32_rows(DType dtype, const void* tensor, int64_t offset, int64_t stride, int64_t rows, int64_t columns,
               int64_t passes, float* buffer) {
  if (dtype == DType::kFloat32 && Products::in_place(stride, columns, passes)) {
    return {static_cast<const float*>(tensor) + offset, stride};
  }
  const int64_t width = Products::padded(columns);
  with_type(dtype, tensor, offset, [&](const auto* from) { load_rows(from, stride, rows, columns, width, buffer); });
  return {buffer, width};
}

// What the sum of weighted values is multiplied by in the end; 0 where nothing took part.
inline float inverse_sum(float row_sum) { return row_sum == 0.0f ? 0.0f : 1.0f / row_sum; }

inline float log_sum(float row_max, float row_sum) {
  return row_sum == 0.0f ? -kInfinity : static_cast<float>(row_max + ::log(static_cast<double>(row_sum)));
}

// Up to kWidth queries of an Item and their state.
template <class Products>
struct Pass {
  static constexpr int kWidth = Products::kWidth;

  PassRows<kWidth> rows;
  ScoreRows<kWidth> bias;
  ScoreRows<kWidth> mask;
  OnlineSoftmax<kWidth / kLanes> softmax;
  float* query = nullptr;
  float* output = nullptr;

  // `sinks`: whether this range of keys is the one that counts them.
  void start(const AttentionParams& p, float scale, bool sinks) {
    int64_t offsets[kWidth];
    rows.offsets(p.query_strides, offsets);
    with_type(p.dtype, p.query, 0,
              [&](const auto* from) { Products::load_query(from, offsets, rows.count, p.head_size, scale, query); });
    std::memset(output, 0, static_cast<size_t>(kWidth * Products::padded(p.v_head_size)) * sizeof(float));
    for (int lane = 0; lane < kWidth; ++lane) {
      softmax.reset(lane, sinks ? p.sinks[rows.head[lane] * p.sinks_stride] : -kInfinity);
    }
    if (p.attn_bias != nullptr) bias.set(rows, p.bias_strides);
    if (p.attn_mask != nullptr) mask.set(rows, p.mask_strides);
  }

  void finish(const AttentionParams& p) const {
    alignas(64) float inverse[kWidth];
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      inverse[lane] = inverse_sum(softmax.row_sum[lane]);
      if (p.softmax_lse == nullptr || lane >= rows.count) continue;
      p.softmax_lse[(rows.batch * p.num_heads + rows.head[lane]) * p.q_len + rows.row[lane]] =
          log_sum(softmax.row_max[lane], softmax.row_sum[lane]);
    }
    int64_t offsets[kWidth];
    rows.offsets(p.output_strides, offsets);
    with_type(p.dtype, p.output, 0,
              [&](auto* to) { Products::store_output(output, inverse, rows.count, p.v_head_size, to, offsets); });
  }

  // `partial` (rows.count, 2 + E): row_max, row_sum and the undivided output.
  void finish_partial(const AttentionParams& p, float* partial) const {
    const int64_t stride = 2 + p.v_head_size;
    alignas(64) float ones[kWidth];
    int64_t offsets[kWidth];
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      ones[lane] = 1.0f;
      offsets[lane] = lane * stride + 2;
      if (lane >= rows.count) continue;
      partial[lane * stride] = softmax.row_max[lane];
      partial[lane * stride + 1] = softmax.row_sum[lane];
    }
    Products::store_output(output, ones, rows.count, p.v_head_size, partial, offsets);
  }
};

inline float scale_of(const AttentionParams& p) {
  return p.scale != 0.0f ? p.scale : 1.0f / std::sqrt(static_cast<float>(p.head_size));
}

template <class Products>
void attend(const AttentionParams& p, const Item& item, const Scratch& scratch) {
  constexpr int kWidth = Products::kWidth;
  const float scale = scale_of(p);
  const int64_t kv_head = item.first_head / (p.num_heads / p.kv_num_heads);
  const int64_t key_offset = item.batch * p.key_strides.batch + kv_head * p.key_strides.head;
  const int64_t value_offset = item.batch * p.value_strides.batch + kv_head * p.value_strides.head;

  Pass<Products> passes[kMaxPasses];
  const int64_t pass_count = (item.heads * item.rows + kWidth - 1) / kWidth;
  KeyRange range{p.kv_len, 0};
  for (int64_t i = 0; i < pass_count; ++i) {
    Pass<Products>& pass = passes[i];
    pass.query = scratch.query + i * kWidth * Products::padded(p.head_size);
    pass.output = scratch.output + i * kWidth * Products::padded(p.v_head_size);
    pass.rows.set(p, item, i * kWidth);
    pass.start(p, scale, p.sinks != nullptr && item.keys.first == 0);
    if (pass.rows.seen_by_any.first < range.first) range.first = pass.rows.seen_by_any.first;
    if (pass.rows.seen_by_any.last > range.last) range.last = pass.rows.seen_by_any.last;
  }

  if (item.keys.first > range.first) range.first = item.keys.first;
  if (item.keys.last < range.last) range.last = item.keys.last;
  TileWalk walk(p, item, range, kTileKeys);
  KeyRange tile;
  while (walk.next(&tile)) {
    const int64_t tile_keys = tile.last - tile.first;
    Rows key{nullptr, 0};
    Rows value{nullptr, 0};
    for (int64_t i = 0; i < pass_count; ++i) {
      Pass<Products>& pass = passes[i];
      if (!pass.rows.see(tile)) continue;
      const MaskTile<kWidth> mask(p, pass.mask, pass.rows.count, tile, scratch.mask);
      if (mask.empty()) continue;
      if (key.data == nullptr) {  // the first pass that wants this tile loads it
        key = fp32_rows<Products>(p.dtype, p.key, key_offset + tile.first * p.key_strides.row, p.key_strides.row,
                                  tile_keys, p.head_size, pass_count, scratch.key);
        value = fp32_rows<Products>(p.dtype, p.value, value_offset + tile.first * p.value_strides.row,
                                    p.value_strides.row, tile_keys, p.v_head_size, pass_count, scratch.value);
      }
      Products::score(key, tile_keys, pass.query, p.head_size, scratch.scores);
      if (p.softcap > 0) cap_scores(scratch.scores, tile_keys * kWidth, p.softcap);
      if (p.attn_bias != nullptr) add_bias(p, pass.bias, pass.rows.count, tile, scratch.bias, scratch.scores);
      mask.apply(scratch.scores);
      pass.rows.limit(scratch.scores, tile);
      alignas(64) float correction[kWidth];
      pass.softmax.absorb(scratch.scores, tile_keys, correction);
      if (p.dropout_p > 0) {
        dropout_factors(p, pass.rows, tile, scratch.drop);
        drop(scratch.scores, tile_keys * kWidth, scratch.drop);
      }
      Products::accumulate(value, tile_keys, scratch.scores, correction, p.v_head_size, pass.output);
    }
  }
  for (int64_t i = 0; i < pass_count; ++i) {
    if (item.partial == nullptr) {
      passes[i].finish(p);
    } else {
      passes[i].finish_partial(p, item.partial + i * kWidth * (2 + p.v_head_size));
    }
  }
}

// attend() with as many vectors a pass as asked for.
template <int kVectors>
void attend_many(int64_t vectors, const AttentionParams& p, const Item& item, const Scratch& scratch) {
  if (vectors == kVectors) return attend<ManyQueries<kVectors>>(p, item, scratch);
  if constexpr (kVectors < kMaxVectors) attend_many<kVectors + 1>(vectors, p, item, scratch);
}

void attend_few(int64_t queries, const AttentionParams& p, const Item& item, const Scratch& scratch) {
  // The products leave the lanes past their queries alone; let no NaN stand in them.
  std::memset(scratch.scores, 0, static_cast<size_t>(kTileKeys * kLanes) * sizeof(float));
  if (queries == 1) return attend<FewQueries<1>>(p, item, scratch);
  if (queries == 2) return attend<FewQueries<2>>(p, item, scratch);
  attend<FewQueries<4>>(p, item, scratch);
}

size_t scratch_bytes(const AttentionParams& params) { return static_cast<size_t>(Scratch().lay_out(params, nullptr)); }

void run_item(const AttentionParams& params, const Item& item, void* memory) {
  Scratch scratch;
  scratch.lay_out(params, memory);
  const int64_t queries = item.heads * item.rows;
  if (item.few) return attend_few(queries, params, item, scratch);
  // The fewest vectors a pass that cover the queries in the fewest passes: 40 queries of 16 lanes are one pass of 3.
  const int64_t vectors = (queries + kLanes - 1) / kLanes;
  const int64_t pass_count = (vectors + kMaxVectors - 1) / kMaxVectors;
  attend_many<1>((vectors + pass_count - 1) / pass_count, params, item, scratch);
}

// O = sum_i exp(max_i - max) O_i / sum_i exp(max_i - max) sum_i over the partials i of each row.
void combine_item(const AttentionParams& p, const Item& item, int64_t splits) {
  const int64_t stride = 2 + p.v_head_size;
  const int64_t queries = item.heads * item.rows;
  for (int64_t query = 0; query < queries; ++query) {
    float* const first = item.partial + query * stride;
    float* const output = first + 2;
    float row_max = -kInfinity;
    for (int64_t i = 0; i < splits; ++i) {
      const float partial_max = first[i * queries * stride];
      if (!(partial_max <= row_max)) row_max = partial_max;  // a NaN stays
    }
    float row_sum = 0.0f;
    for (int64_t i = 0; i < splits; ++i) {
      const float* partial = first + i * queries * stride;
      const float factor = partial[0] == -kInfinity ? 0.0f : ::expf(partial[0] - row_max);
      row_sum += factor * partial[1];
      for (int64_t e = 0; e < p.v_head_size; ++e) output[e] = factor * partial[2 + e] + (i == 0 ? 0.0f : output[e]);
    }
    const int64_t head = item.first_head + query / item.rows;
    const int64_t row = item.first_row + query % item.rows;
    if (p.softmax_lse != nullptr) {
      p.softmax_lse[(item.batch * p.num_heads + head) * p.q_len + row] = log_sum(row_max, row_sum);
    }
    const int64_t offset =
        item.batch * p.output_strides.batch + head * p.output_strides.head + row * p.output_strides.row;
    with_type(p.dtype, p.output, offset, [&](auto* to) { store_row(output, inverse_sum(row_sum), p.v_head_size, to); });
  }
}

}  // namespace
}  // namespace ortflash::cpu

#include "plan.h"

namespace ortflash::cpu {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Queries of an item whose Q and O in fp32 stay within 256 KB, in an L2 that also holds the tiles.
int64_t most_rows(const AttentionParams& p, const TileKernel& kernel) {
  int64_t rows = kernel.max_rows;
  while (rows > 4 * kernel.lanes && rows * (p.head_size + p.v_head_size) > 256 * 1024 / 4) rows /= 2;
  return rows;
}

// Decoding has few items, each of which reads all keys: cut those into up to 32 items of at least 512 keys. Combining
// costs a few rows each.
int64_t key_splits(const AttentionParams& p, int64_t items, int64_t queries) {
  if (queries > 16) return 1;
  const int64_t splits = smaller(32 / items, p.kv_len / 512);
  return splits < 1 ? 1 : splits;
}

}  // namespace

Plan make_plan(const AttentionParams& p, const TileKernel& kernel, int64_t threads) {
  const int64_t group = p.num_heads / p.kv_num_heads;
  const int64_t groups = p.batch * p.kv_num_heads;
  int64_t most = most_rows(p, kernel);
  Plan plan;
  plan.heads = 1;
  if (p.block_mask != nullptr) {
    plan.rows = smaller(p.block_size, most);
  } else if (group > 1 && p.q_len <= 16) {
    // Heads of a group fill the lanes that a short sequence leaves idle, and share what is loaded.
    plan.heads = smaller(group, most / p.q_len);
    plan.rows = p.q_len;
  } else {
    // Four items a thread keep all threads busy to the end; below 64 queries loading costs more than waiting.
    while (most > 64 && most > kernel.lanes && groups * group * divide_up(p.q_len, most) < 4 * threads) most /= 2;
    // Even cuts: 130 queries are 48 + 48 + 34, not 64 + 64 + 2.
    plan.rows = divide_up(divide_up(p.q_len, kernel.lanes), divide_up(p.q_len, most)) * kernel.lanes;
  }
  plan.chunks = divide_up(group, plan.heads);
  plan.pieces = divide_up(p.q_len, plan.rows);
  const int64_t queries = plan.heads * smaller(plan.rows, p.q_len);
  plan.few = queries <= kFewQueries;
  plan.splits = key_splits(p, groups * plan.chunks * plan.pieces, queries);
  plan.items = groups * plan.chunks * plan.pieces * plan.splits;
  return plan;
}

int64_t partial_floats(const AttentionParams& p, const Plan& plan) {
  return plan.splits == 1 ? 0 : plan.heads * smaller(plan.rows, p.q_len) * (2 + p.v_head_size);
}

Item make_item(const AttentionParams& p, const Plan& plan, int64_t index, float* partials) {
  const int64_t group = p.num_heads / p.kv_num_heads;
  const int64_t split = index % plan.splits;
  const int64_t output = index / plan.splits;
  // Heads outermost, so that threads share a head's keys and values in cache; the last rows first, which under a causal
  // mask have the most to do.
  const int64_t piece = plan.pieces - 1 - output % plan.pieces;
  const int64_t chunk = output / plan.pieces % plan.chunks;
  const int64_t kv_head = output / plan.pieces / plan.chunks;
  Item item;
  item.batch = kv_head / p.kv_num_heads;
  item.first_head = kv_head % p.kv_num_heads * group + chunk * plan.heads;
  item.heads = smaller(plan.heads, group - chunk * plan.heads);
  item.first_row = piece * plan.rows;
  item.rows = smaller(plan.rows, p.q_len - item.first_row);
  const int64_t keys = divide_up(divide_up(p.kv_len, plan.splits), 64) * 64;
  item.keys = {smaller(split * keys, p.kv_len), smaller((split + 1) * keys, p.kv_len)};
  item.few = plan.few;
  // The partials of one output lie one after the other, as many rows each as this item has.
  item.partial = plan.splits == 1 ? nullptr
                                  : partials + output * plan.splits * partial_floats(p, plan) +
                                        split * item.heads * item.rows * (2 + p.v_head_size);
  return item;
}

}  // namespace ortflash::cpu

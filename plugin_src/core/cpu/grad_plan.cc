#include "grad_plan.h"

namespace ortflash::cpu {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace

GradPlan make_grad_plan(const AttentionGradParams& params) {
  const AttentionParams& p = params.forward;
  GradPlan plan;
  plan.tile_rows = p.block_mask != nullptr ? smaller(p.block_size, kGradRows) : kGradRows;
  plan.row_tiles = divide_up(p.q_len, plan.tile_rows);
  // Keys, values and their gradients in fp32 stay within 512 KB, in an L2 that also holds the tiles.
  plan.chunk_keys = 512;
  while (plan.chunk_keys > 128 && plan.chunk_keys * 2 * (p.head_size + p.v_head_size) > 512 * 1024 / 4) {
    plan.chunk_keys /= 2;
  }
  plan.chunks = divide_up(p.kv_len, plan.chunk_keys);
  // 32 items or more keep many threads busy; each split costs one more d_query in fp32.
  plan.splits = smaller(plan.chunks, larger(1, 32 / (p.batch * p.kv_num_heads)));
  const Strides& bias = params.d_bias_strides;
  plan.bias_batches = bias.batch == 0 ? 1 : p.batch;
  plan.bias_heads = bias.head == 0 ? 1 : p.num_heads;
  plan.bias_row_tiles = bias.row == 0 ? 1 : plan.row_tiles;
  plan.bias_key_tiles = bias.column == 0 ? 1 : divide_up(p.kv_len, kGradKeys);
  return plan;
}

Item row_item(const AttentionParams& params, const GradPlan& plan, int64_t batch, int64_t head, int64_t tile) {
  Item item;
  item.batch = batch;
  item.first_head = head;
  item.heads = 1;
  item.first_row = tile * plan.tile_rows;
  item.rows = smaller(plan.tile_rows, params.q_len - item.first_row);
  item.keys = {0, params.kv_len};
  item.few = false;
  item.partial = nullptr;
  return item;
}

int64_t GradPlan::bias_items() const { return bias_batches * bias_heads * bias_row_tiles * bias_key_tiles; }

GradCall::GradCall(const AttentionGradParams& p) : params(p), plan(make_grad_plan(p)) {}

int64_t GradCall::row_index(int64_t batch, int64_t head, int64_t row) const {
  return (batch * params.forward.num_heads + head) * params.forward.q_len + row;
}

float* GradCall::d_query_rows(int64_t split, int64_t batch, int64_t head, int64_t row) const {
  const AttentionParams& f = params.forward;
  const int64_t rows_before = split * f.batch * f.num_heads * f.q_len + row_index(batch, head, row);
  return d_query + rows_before * padded_size(f.head_size);
}

size_t GradCall::lay_out(void* start) {
  const AttentionParams& f = params.forward;
  const int64_t rows = f.batch * f.num_heads * f.q_len;
  size_t used = 0;
  const auto take = [&](float** buffer, int64_t count) {
    if (start != nullptr) *buffer = reinterpret_cast<float*>(static_cast<char*>(start) + used);
    used += (static_cast<size_t>(count) * sizeof(float) + 255) / 256 * 256;
  };
  take(&delta, rows);
  take(&row_factor, rows);
  take(&d_query, plan.splits * rows * padded_size(f.head_size));
  return used;
}

}  // namespace ortflash::cpu

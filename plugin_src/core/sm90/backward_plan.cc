#include "backward_plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../status.h"
#include "forward_params.h"
#include "tensor_map.h"

namespace ortflash::sm90 {
namespace {

constexpr int64_t kMaxLength = int64_t{1} << 28;
constexpr double kLog2E = 1.4426950408889634;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A tensor of the call as the copy engine, or 16-byte loads and stores, need it.
struct Operand {
  const char* name;
  const void* pointer;
  const Strides& strides;
  int64_t heads, rows;
};

Status check_operand(const Operand& o, int64_t batch) {
  const auto steps = [](int64_t stride, int64_t count) {
    return count == 1 || (stride > 0 && stride % 8 == 0 && stride < int64_t{1} << 39);
  };
  if (reinterpret_cast<uintptr_t>(o.pointer) % 16 == 0 && steps(o.strides.batch, batch) &&
      steps(o.strides.head, o.heads) && steps(o.strides.row, o.rows)) {
    return {};
  }
  return make_status(StatusCode::kUnsupported,
                     "sm90 needs %s aligned to 16 bytes, with strides that are multiples of 8 elements; they are batch "
                     "%lld, head %lld, row %lld",
                     o.name, static_cast<long long>(o.strides.batch), static_cast<long long>(o.strides.head),
                     static_cast<long long>(o.strides.row));
}

float scale_of(const AttentionParams& p) {
  return p.scale != 0.0f ? p.scale : 1.0f / std::sqrt(static_cast<float>(p.head_size));
}

int64_t padded_rows(const AttentionParams& p, const BackwardKernel& kernel) {
  return p.batch * p.num_heads * ceil_div(p.q_len, kernel.block_q) * kernel.block_q;
}

// Row i sees keys j with i + low <= j < i + high.
void set_limits(const AttentionParams& a, BackwardParams* p) {
  p->bottom_right = a.causal_alignment == CausalAlignment::kBottomRight;
  const int64_t offset = p->bottom_right ? a.kv_len - a.q_len : 0;
  const int64_t right = a.is_causal ? 0 : a.window_right;
  p->low = a.window_left < 0 || a.window_left > kMaxLength ? -kUnbounded : static_cast<int32_t>(offset - a.window_left);
  p->high = right < 0 || right > kMaxLength ? kUnbounded : static_cast<int32_t>(offset + right + 1);
}

// Key/value heads in a section of the schedule. Where the tiles of keys have different numbers of queries, as many as
// have Q, dO and the sums of dQ in two thirds of an H100's L2, so that the longest tiles of several heads come first.
int32_t section_heads(const AttentionParams& a, const BackwardParams& p, const BackwardKernel& kernel) {
  constexpr int64_t kBytes = int64_t{32} << 20;
  if (p.high == kUnbounded) return 1;
  const int64_t head_bytes = int64_t{p.group} * p.padded_q_len * kernel.head * (2 + 2 + 4);
  return static_cast<int32_t>(std::clamp<int64_t>(kBytes / head_bytes, 1, a.batch * a.kv_num_heads));
}

}  // namespace

Status choose_backward_kernel(const AttentionGradParams& g, bool masked, const BackwardKernel** kernel) {
  const AttentionParams& p = g.forward;
  if (p.q_len >= kMaxLength || p.kv_len >= kMaxLength) {
    return make_status(StatusCode::kUnsupported, "sm90 takes lengths below 2^28");
  }
  if (p.head_size % 8 != 0) {
    return make_status(StatusCode::kUnsupported, "sm90 takes head sizes that are multiples of 8; this call has %lld",
                       static_cast<long long>(p.head_size));
  }
  if (!(scale_of(p) > 0)) {
    return make_status(StatusCode::kUnsupported, "sm90 takes scales above 0; this call has %g",
                       static_cast<double>(p.scale));
  }
  const BackwardKernelList list = p.dtype == DType::kFloat16 ? float16_backward_kernels() : bfloat16_backward_kernels();
  if (p.attn_mask != nullptr && p.mask_strides.row != 0 && p.q_len > 1) {
    return make_status(StatusCode::kUnsupported,
                       "sm90 takes an attn_mask in the backward only where all rows of a head share it");
  }
  if (p.block_mask != nullptr && p.block_size < list.first->block_kv) {
    return make_status(StatusCode::kUnsupported,
                       "sm90 takes block masks in the backward whose block_size is %d or more; this call has %lld",
                       list.first->block_kv, static_cast<long long>(p.block_size));
  }
  const Operand operands[] = {
      {"query", p.query, p.query_strides, p.num_heads, p.q_len},
      {"key", p.key, p.key_strides, p.kv_num_heads, p.kv_len},
      {"value", p.value, p.value_strides, p.kv_num_heads, p.kv_len},
      {"output", p.output, p.output_strides, p.num_heads, p.q_len},
      {"d_output", g.d_output, g.d_output_strides, p.num_heads, p.q_len},
      {"d_query", g.d_query, g.d_query_strides, p.num_heads, p.q_len},
      {"d_key", g.d_key, g.d_key_strides, p.kv_num_heads, p.kv_len},
      {"d_value", g.d_value, g.d_value_strides, p.kv_num_heads, p.kv_len},
  };
  for (const Operand& operand : operands) {
    if (Status status = check_operand(operand, p.batch); !status.ok()) return status;
  }
  for (size_t i = 0; i < list.count; ++i) {
    if (list.first[i].masked != masked || list.first[i].head < p.head_size) continue;
    if (padded_rows(p, list.first[i]) * 2 >= int64_t{1} << 31) {
      return make_status(StatusCode::kUnsupported, "sm90 takes fewer than 2^30 rows of queries");
    }
    *kernel = &list.first[i];
    return {};
  }
  return make_status(StatusCode::kUnsupported, "sm90 takes head sizes up to 128 in the backward");
}

size_t backward_workspace_bytes(const AttentionGradParams& g, const BackwardKernel& kernel) {
  return static_cast<size_t>(padded_rows(g.forward, kernel)) * (2 + kernel.head) * sizeof(float);
}

Status make_backward_plan(const AttentionGradParams& g, const BackwardKernel& kernel, void* workspace,
                          BackwardPlan* plan) {
  const AttentionParams& a = g.forward;
  std::memset(static_cast<void*>(plan), 0, sizeof(*plan));
  plan->kernel = &kernel;
  BackwardParams& p = plan->params;
  p.batch = static_cast<int32_t>(a.batch);
  p.q_len = static_cast<int32_t>(a.q_len);
  p.kv_len = static_cast<int32_t>(a.kv_len);
  p.head_size = static_cast<int32_t>(a.head_size);
  p.num_heads = static_cast<int32_t>(a.num_heads);
  p.group = static_cast<int32_t>(a.num_heads / a.kv_num_heads);
  p.query_tiles = static_cast<int32_t>(ceil_div(a.q_len, kernel.block_q));
  p.padded_q_len = p.query_tiles * kernel.block_q;
  p.key_tiles = static_cast<int32_t>(ceil_div(a.kv_len, kernel.block_kv));
  set_limits(a, &p);
  p.section_heads = section_heads(a, p, kernel);
  p.global_tiles = a.block_mask != nullptr ? std::min(2, p.key_tiles) : 0;
  p.scale = scale_of(a);
  p.scale_log2 = static_cast<float>(p.scale * kLog2E);
  p.softmax_lse = a.softmax_lse;
  p.output = a.output;
  p.d_output = g.d_output;
  p.output_strides = a.output_strides;
  p.d_output_strides = g.d_output_strides;
  p.d_query = g.d_query;
  p.d_key = g.d_key;
  p.d_value = g.d_value;
  p.d_query_strides = g.d_query_strides;
  p.d_key_strides = g.d_key_strides;
  p.d_value_strides = g.d_value_strides;
  p.key_lengths = a.key_lengths;
  p.key_lengths_stride = static_cast<int32_t>(a.key_lengths_stride);
  p.mask = a.attn_mask;
  p.mask_batch = a.mask_strides.batch;
  p.mask_head = a.mask_strides.head;
  p.mask_column = a.mask_strides.column;
  p.block_mask = a.block_mask;
  p.block_mask_strides = a.block_mask_strides;
  while (int64_t{1} << p.block_shift < a.block_size) ++p.block_shift;
  const int64_t rows = padded_rows(a, kernel);
  p.d_query_sum = static_cast<float*>(workspace);
  p.lse_log2 = p.d_query_sum + rows * kernel.head;
  p.delta = p.lse_log2 + rows;

  plan->prepare_grid = ceil_div(rows * (kernel.head / 8), kernel.rows_threads);
  plan->gradient_grid = a.batch * a.kv_num_heads * p.key_tiles;
  plan->finish_grid = a.batch * a.num_heads * p.query_tiles * 2;

  const CUtensorMapDataType type =
      a.dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto encode = [&](const void* data, const Strides& strides, int64_t heads, int64_t rows_of_head, int box_rows,
                          CUtensorMap* map) {
    return encode_map(
        {type, 2, data, a.batch, heads, rows_of_head, a.head_size, strides, box_rows, 64, CU_TENSOR_MAP_SWIZZLE_128B},
        map);
  };
  Status status = encode(a.query, a.query_strides, a.num_heads, a.q_len, kernel.block_q, &plan->maps.query);
  if (status.ok()) {
    status = encode(g.d_output, g.d_output_strides, a.num_heads, a.q_len, kernel.block_q, &plan->maps.d_output);
  }
  if (status.ok()) status = encode(a.key, a.key_strides, a.kv_num_heads, a.kv_len, kernel.block_kv, &plan->maps.key);
  if (status.ok()) {
    status = encode(a.value, a.value_strides, a.kv_num_heads, a.kv_len, kernel.block_kv, &plan->maps.value);
  }
  return status;
}

}  // namespace ortflash::sm90

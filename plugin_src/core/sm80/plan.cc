#include "plan.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>

#include "../dropout.h"
#include "../status.h"
#include "implementation.h"

namespace ortflash::sm80 {
namespace {

// Queries this short leave most of the GPU idle unless the keys are split, and let grouped heads share a tile.
constexpr int64_t kShortQuery = 16;
constexpr int kMaxKeySplits = 128;
constexpr int kMinBlocksPerSplit = 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The largest of 16, 8, 4 bytes that divides a tensor's address and all its strides, or 0.
int copy_bytes(const void* pointer, const Strides& strides, int64_t bytes) {
  const uint64_t together = reinterpret_cast<uintptr_t>(pointer) | static_cast<uint64_t>(strides.batch * bytes) |
                            static_cast<uint64_t>(strides.head * bytes) | static_cast<uint64_t>(strides.row * bytes);
  for (const int width : {16, 8, 4}) {
    if (together % width == 0) return width;
  }
  return 0;
}

// Whether four adjacent elements of a bias or mask can be loaded together, wherever they start.
bool loads_by_four(const void* pointer, const Strides& strides, int64_t bytes) {
  const uint64_t together = reinterpret_cast<uintptr_t>(pointer) | static_cast<uint64_t>(strides.batch * bytes) |
                            static_cast<uint64_t>(strides.head * bytes) | static_cast<uint64_t>(strides.row * bytes);
  return strides.column == 1 && together % (4 * bytes) == 0;
}

int bound(int64_t window) { return window < 0 ? kUnbounded : static_cast<int>(std::min<int64_t>(window, kUnbounded)); }

}  // namespace

Status check_sizes(const AttentionParams& a) {
  if (a.q_len >= kUnbounded || a.kv_len >= kUnbounded) {
    return make_status(StatusCode::kUnsupported, "q_len %lld or kv_len %lld is past 2^30 - 1, the longest on CUDA",
                       static_cast<long long>(a.q_len), static_cast<long long>(a.kv_len));
  }
  if (a.batch * a.num_heads > INT_MAX) {
    return make_status(StatusCode::kUnsupported, "batch %lld times num_heads %lld is past 2^31 - 1, the most on CUDA",
                       static_cast<long long>(a.batch), static_cast<long long>(a.num_heads));
  }
  return {};
}

void fill_params(const AttentionParams& a, KernelParams* p) {
  p->query = a.query;
  p->key = a.key;
  p->value = a.value;
  p->output = a.output;
  p->lse = a.softmax_lse;
  p->query_strides = a.query_strides;
  p->key_strides = a.key_strides;
  p->value_strides = a.value_strides;
  p->output_strides = a.output_strides;
  p->bias = a.attn_bias;
  p->bias_strides = a.bias_strides;
  p->mask = a.attn_mask;
  p->mask_strides = a.mask_strides;
  p->block_mask = a.block_mask;
  p->block_mask_strides = a.block_mask_strides;
  p->key_lengths = a.key_lengths;
  p->sinks = a.sinks;
  p->partial_output = nullptr;
  p->partial_state = nullptr;
  p->batch = static_cast<int>(a.batch);
  p->num_heads = static_cast<int>(a.num_heads);
  p->q_len = static_cast<int>(a.q_len);
  p->kv_len = static_cast<int>(a.kv_len);
  p->head_size = static_cast<int>(a.head_size);
  p->v_head_size = static_cast<int>(a.v_head_size);
  p->group = static_cast<int>(a.num_heads / std::max<int64_t>(1, a.kv_num_heads));
  p->key_lengths_stride = static_cast<int>(a.key_lengths_stride);
  p->sinks_stride = static_cast<int>(a.sinks_stride);
  p->block_size = static_cast<int>(a.block_size);
  p->bias_bytes = static_cast<int>(element_bytes(a.bias_dtype));
  p->bias_vector = loads_by_four(a.attn_bias, a.bias_strides, p->bias_bytes);
  p->mask_vector = loads_by_four(a.attn_mask, a.mask_strides, 1);
  p->query_copy = copy_bytes(a.query, a.query_strides, element_bytes(a.dtype));
  p->key_copy = copy_bytes(a.key, a.key_strides, element_bytes(a.dtype));
  p->value_copy = copy_bytes(a.value, a.value_strides, element_bytes(a.dtype));
  p->reach_left = bound(a.window_left);
  p->reach_right = a.is_causal ? 0 : bound(a.window_right);
  p->bottom_right = a.causal_alignment == CausalAlignment::kBottomRight;
  p->output_store = copy_bytes(a.output, a.output_strides, element_bytes(a.dtype));
  p->scale = a.scale != 0.0f ? a.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_size)));
  p->softcap = a.softcap;
  p->softcap_inverse = a.softcap != 0.0f ? 1.0f / a.softcap : 0.0f;
  p->mask_fill = a.mask_fill;
  p->dropout_seed = a.dropout_seed;
  p->dropout_threshold = dropout_threshold(a.dropout_p);
  p->dropout_scale = dropout_scale(a.dropout_p);
}

namespace {

// Pieces lie one after the other in each row, rows and heads without gaps.
void read_pieces(const AttentionParams& a, int64_t count, KernelParams* p) {
  const auto strides = [&](int64_t heads, int64_t length, int64_t columns) {
    return Strides{heads * length * count * columns, length * count * columns, count * columns, 1};
  };
  p->piece_columns = static_cast<int>(piece_columns(a.head_size));
  p->v_piece_columns = static_cast<int>(piece_columns(a.v_head_size));
  p->query_strides = strides(a.num_heads, a.q_len, p->piece_columns);
  p->key_strides = strides(a.kv_num_heads, a.kv_len, p->piece_columns);
  p->value_strides = strides(a.kv_num_heads, a.kv_len, p->v_piece_columns);
  p->query_copy = p->key_copy = p->value_copy = 16;
}

// The kernels for a type, with dropout or without.
KernelList kernels_for(DType dtype, bool precise, bool dropout) {
  switch (dtype) {
    case DType::kFloat16:
      return dropout ? float16_dropout_kernels() : float16_kernels();
    case DType::kBFloat16:
      return dropout ? bfloat16_dropout_kernels() : bfloat16_kernels();
    default:
      if (dropout) return precise ? tf32x3_dropout_kernels() : tf32_dropout_kernels();
      return precise ? tf32x3_kernels() : tf32_kernels();
  }
}

// What a call's rows of operands, bias and mask allow, how long its tiles are, and whether it wants softmax_lse.
struct Request {
  int64_t head_size, tile_rows;
  bool plain, terms, lse;
};

// The first kernel that takes it, or null.
const Kernel* choose_kernel(const KernelList& kernels, const Request& request, const Gpu& gpu) {
  for (int i = 0; i < kernels.count; ++i) {
    const Kernel& kernel = kernels.first[i];
    const bool takes = (kernel.takes_all || (kernel.takes_terms ? request.terms : request.plain)) &&
                       (kernel.writes_lse || !request.lse);
    if (request.head_size <= kernel.max_head_size && takes &&
        (kernel.max_q_len == 0 || request.tile_rows <= kernel.max_q_len) && kernel.shared_bytes <= gpu.shared_bytes) {
      return &kernel;
    }
  }
  return nullptr;
}

}  // namespace

Status make_plan(const AttentionParams& a, const Gpu& gpu, Plan* plan) {
  if (Status status = check_sizes(a); !status.ok()) return status;
  KernelParams& p = plan->params;
  fill_params(a, &p);

  const bool short_query = a.q_len <= kShortQuery;
  const bool small = a.q_len <= kSmallTile;  // a tile of 128 rows would be mostly empty
  const bool packed = short_query && p.group > 1 && p.block_mask == nullptr;
  const int64_t head_size = std::max(a.head_size, a.v_head_size);
  const auto choose = [&](const KernelList& kernels) {
    const bool aligned = p.query_copy == 16 && p.key_copy == 16 && p.value_copy == 16 && p.output_store >= 4;
    const bool bare = aligned && p.block_mask == nullptr && p.softcap == 0.0f && !small;
    const bool plain = bare && p.bias == nullptr && p.mask == nullptr && p.scale > 0.0f;
    const bool terms = bare && (p.bias == nullptr || (p.bias_vector && a.bias_dtype == a.dtype)) &&
                       (p.mask == nullptr || p.mask_vector) && a.kv_len % 4 == 0;
    return choose_kernel(kernels, {head_size, a.q_len * (packed ? p.group : 1), plain, terms, p.lse != nullptr}, gpu);
  };
  plan->kernel = nullptr;
  plan->pieces = piece_layout(a);
  if (plan->pieces.count != 0) {
    KernelParams uncut = p;
    read_pieces(a, plan->pieces.count, &p);
    plan->kernel = choose(a.precise ? bf16x3_kernels() : bf16x2_kernels());
    if (plan->kernel == nullptr) {  // too little shared memory
      p = uncut;
      plan->pieces = {};
    }
  }
  if (plan->kernel == nullptr) plan->kernel = choose(kernels_for(a.dtype, a.precise, a.dropout_p > 0));
  if (plan->kernel == nullptr) {
    return make_status(
        StatusCode::kUnsupported, "no kernel takes head size %lld with value head size %lld on %s (sm_%d%d)",
        static_cast<long long>(a.head_size), static_cast<long long>(a.v_head_size), gpu.name, gpu.major, gpu.minor);
  }
  const Kernel& kernel = *plan->kernel;
  p.to_natural = kernel.takes_terms ? 1.0f : p.scale;
  p.factor = p.to_natural * 1.44269504088896341f;

  p.packed_heads = packed ? p.group : 1;
  p.row_tiles = static_cast<int>(ceil_div(a.q_len * p.packed_heads, kernel.block_q));
  p.value_splits = static_cast<int>(ceil_div(a.v_head_size, kernel.columns));
  const int64_t packs = a.batch * a.num_heads / p.packed_heads;
  const int64_t tiles = packs * p.row_tiles * p.value_splits;

  p.key_splits = 1;
  if (short_query && tiles > 0 && tiles < 2 * gpu.multiprocessors) {
    const int64_t wanted = ceil_div(2 * gpu.multiprocessors, tiles);
    const int64_t possible = ceil_div(a.kv_len, kernel.block_kv * kMinBlocksPerSplit);
    p.key_splits = static_cast<int>(std::max<int64_t>(1, std::min({wanted, possible, int64_t{kMaxKeySplits}})));
  }
  if (tiles * p.key_splits > INT_MAX) {
    return make_status(StatusCode::kUnsupported, "%lld tiles are more than one launch can have (2^31 - 1)",
                       static_cast<long long>(tiles));
  }

  // Heads whose keys and values take half of L2 together; at least one, and no more than there are.
  const int64_t bytes = plan->pieces.count != 0 ? 2 * plan->pieces.count : element_bytes(a.dtype);
  const int64_t bytes_a_head = std::max<int64_t>(1, a.kv_len * (a.head_size + a.v_head_size) * bytes);
  const int64_t kv_heads = std::max<int64_t>(1, gpu.l2_bytes / 2 / bytes_a_head);
  p.heads_per_section = static_cast<int>(std::min<int64_t>(packs, kv_heads * (p.group / p.packed_heads)));

  plan->grid = static_cast<unsigned>(tiles * p.key_splits);
  return {};
}

// Keys are split only so far that tiles * splits < 2 * multiprocessors + tiles where tiles < 2 * multiprocessors, and a
// tile holds rows of at most one group of heads. The pieces of longer fp32 queries, and of their keys and values, grow
// with each size.
size_t workspace_bound(const AttentionParams& smallest, const AttentionParams& largest) {
  constexpr int64_t kMultiprocessors = 256;  // of the largest GPU that there may be; today's have up to 160
  const KernelList kernels = kernels_for(largest.dtype, largest.precise, largest.dropout_p > 0);
  int64_t block_kv = kernels.first[0].block_kv;
  for (int i = 1; i < kernels.count; ++i) block_kv = std::min<int64_t>(block_kv, kernels.first[i].block_kv);
  const int64_t splits = std::min<int64_t>(kMaxKeySplits, ceil_div(largest.kv_len, block_kv * kMinBlocksPerSplit));
  const size_t pieces = piece_layout(largest).bytes;
  if (smallest.q_len > kShortQuery || splits <= 1) return pieces;
  const int64_t group = std::max<int64_t>(1, largest.num_heads / std::max<int64_t>(1, largest.kv_num_heads));
  const int64_t heads = std::min(splits * largest.batch * largest.num_heads, 4 * kMultiprocessors * group);
  return std::max(pieces, partial_bytes(heads * std::min(largest.q_len, kShortQuery), largest.v_head_size));
}

}  // namespace ortflash::sm80

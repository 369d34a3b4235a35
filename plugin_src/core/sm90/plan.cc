#include "plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "../status.h"
#include "tensor_map.h"

namespace ortflash::sm90 {
namespace {

constexpr int64_t kMaxLength = int64_t{1} << 28;
constexpr double kLog2E = 1.4426950408889634;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Whether the copy engine can step along an axis of `count` elements by `stride` elements.
bool steps(int64_t stride, int64_t count, int element_bytes) {
  const int64_t bytes = stride * element_bytes;
  return count == 1 || (bytes > 0 && bytes % 16 == 0 && bytes < int64_t{1} << 40);
}

Status check_operand(const char* name, const void* pointer, const Strides& strides, int64_t batch, int64_t heads,
                     int64_t rows) {
  if (!aligned16(pointer)) {
    return make_status(StatusCode::kUnsupported, "sm90 needs %s aligned to 16 bytes", name);
  }
  if (!steps(strides.batch, batch, 2) || !steps(strides.head, heads, 2) || !steps(strides.row, rows, 2)) {
    return make_status(StatusCode::kUnsupported,
                       "sm90 needs strides of %s that are multiples of 8 elements; they are batch %lld, head %lld, row "
                       "%lld",
                       name, static_cast<long long>(strides.batch), static_cast<long long>(strides.head),
                       static_cast<long long>(strides.row));
  }
  return {};
}

// Strides of a term with those along axes of one element cleared, so that 0 means broadcast.
Strides broadcast_strides(const AttentionParams& p, Strides strides) {
  if (p.batch == 1) strides.batch = 0;
  if (p.num_heads == 1) strides.head = 0;
  if (p.q_len == 1) strides.row = 0;
  if (p.kv_len == 1) strides.column = 0;
  return strides;
}

// `element_bytes`: 4 where the copy engine's tiles would be fp32, which the kernels don't read. `additive`: whether the
// term can be added to scores, as a mask with a finite fill can't.
TermSource term_source(const AttentionParams& p, const void* data, const Strides& s, int element_bytes, bool additive) {
  if (data == nullptr) return TermSource::kNone;
  if (s.row == 0 && additive) return TermSource::kKeys;
  const bool tiles = element_bytes < 4 && aligned16(data) && s.column == 1 && steps(s.row, p.q_len, element_bytes) &&
                     (s.head == 0 || steps(s.head, 2, element_bytes)) &&
                     (s.batch == 0 || steps(s.batch, 2, element_bytes));
  return tiles ? TermSource::kTile : TermSource::kElements;
}

Term make_term(const AttentionParams& p, const void* data, const Strides& given, int element_bytes, bool additive) {
  const Strides s = broadcast_strides(p, given);
  Term term = {};
  term.data = data;
  term.batch = s.batch;
  term.head = s.head;
  term.row = s.row;
  term.column = static_cast<int32_t>(s.column);
  term.source = term_source(p, data, s, element_bytes, additive);
  term.tile_batch = s.batch != 0;
  term.tile_head = s.head != 0;
  term.is_float32 = element_bytes == 4;
  return term;
}

float scale_of(const AttentionParams& p) {
  return p.scale != 0.0f ? p.scale : 1.0f / std::sqrt(static_cast<float>(p.head_size));
}

Term bias_term(const AttentionParams& p) {
  return make_term(p, p.attn_bias, p.bias_strides, p.bias_dtype == DType::kFloat32 ? 4 : 2, true);
}

bool masks_out(const AttentionParams& p) { return std::isinf(p.mask_fill) && p.mask_fill < 0; }

// Adding the fill instead of putting it in a score's place gives -inf where it is -inf, and the fill itself where
// scores of 16-bit inputs vanish beside it and no bias of their own can add to it.
bool fill_can_be_added(const AttentionParams& p) {
  constexpr float kVanishing = -1e30f;
  if (masks_out(p)) return true;
  const TermSource bias = bias_term(p).source;
  return p.mask_fill <= kVanishing && (bias == TermSource::kNone || bias == TermSource::kKeys);
}

Term mask_term(const AttentionParams& p) { return make_term(p, p.attn_mask, p.mask_strides, 1, fill_can_be_added(p)); }

Use use_of(const AttentionParams& p) {
  // A negative scale turns the order of the scores round: only kernels that scale them before the maximum will do.
  if (p.softcap > 0 || scale_of(p) < 0) return kAnything;
  const TermSource bias = bias_term(p).source, mask = mask_term(p).source;
  if (p.block_mask != nullptr) {
    return bias == TermSource::kNone && mask == TermSource::kNone && p.block_size >= 128 ? kBlocked : kAnything;
  }
  if (bias == TermSource::kNone && mask == TermSource::kNone) {
    return p.is_causal || p.window_left >= 0 || p.window_right >= 0 ? kBanded : kFull;
  }
  if (bias == TermSource::kTile && mask == TermSource::kNone) return kBiased;
  if (bias == TermSource::kNone && mask == TermSource::kTile && masks_out(p)) return kMasked;
  const bool keyed = (bias == TermSource::kNone || bias == TermSource::kKeys) &&
                     (mask == TermSource::kNone || mask == TermSource::kKeys);
  return keyed ? kKeyed : kAnything;
}

Strides swap_broadcast(const Term& term) { return {term.batch, term.head, term.row, 1}; }

// In which proportion kernels for one head size need time: rows and keys padded to whole tiles, and whole rounds of
// tiles over the multiprocessors; where rows differ in length, the next round begins before all are through.
double relative_time(const AttentionParams& p, const Kernel& kernel, const Gpu& gpu, unsigned use) {
  const double tiles = static_cast<double>(ceil_div(p.q_len, kernel.block_q) * p.batch * p.num_heads);
  const double rounds = std::max(1.0, tiles / gpu.multiprocessors);
  const double keys = static_cast<double>(ceil_div(p.kv_len, kernel.block_kv) * kernel.block_kv) + kernel.tile_keys;
  return (use == kFull ? std::ceil(rounds) : rounds) * kernel.block_q * kernel.row_cost * keys;
}

}  // namespace

Status choose_kernel(const AttentionParams& p, const Gpu& gpu, const Kernel** kernel) {
  if (p.q_len >= kMaxLength || p.kv_len >= kMaxLength) {
    return make_status(StatusCode::kUnsupported, "sm90 takes lengths below 2^28");
  }
  if (p.head_size % 8 != 0 || p.v_head_size % 8 != 0) {
    return make_status(StatusCode::kUnsupported,
                       "sm90 takes head sizes that are multiples of 8; this call has %lld "
                       "and %lld",
                       static_cast<long long>(p.head_size), static_cast<long long>(p.v_head_size));
  }
  Status status = check_operand("query", p.query, p.query_strides, p.batch, p.num_heads, p.q_len);
  if (status.ok()) status = check_operand("key", p.key, p.key_strides, p.batch, p.kv_num_heads, p.kv_len);
  if (status.ok()) status = check_operand("value", p.value, p.value_strides, p.batch, p.kv_num_heads, p.kv_len);
  if (status.ok()) status = check_operand("output", p.output, p.output_strides, p.batch, p.num_heads, p.q_len);
  if (!status.ok()) return status;
  if (p.attn_bias != nullptr && p.bias_dtype == DType::kFloat32 && broadcast_strides(p, p.bias_strides).row != 0) {
    return make_status(StatusCode::kUnsupported, "sm90 takes an fp32 attn_bias only where all rows share it");
  }

  const KernelList list = p.dtype == DType::kFloat16 ? float16_kernels() : bfloat16_kernels();
  const Use use = use_of(p);
  for (const unsigned wanted : {static_cast<unsigned>(use), static_cast<unsigned>(kAnything)}) {
    const Kernel* best = nullptr;
    for (size_t i = 0; i < list.count; ++i) {
      const Kernel& candidate = list.first[i];
      if ((candidate.uses & wanted) == 0 || candidate.head < std::max(p.head_size, p.v_head_size)) continue;
      if (p.softmax_lse != nullptr && !candidate.writes_lse) continue;
      const bool faster = best != nullptr && candidate.head == best->head &&
                          relative_time(p, candidate, gpu, wanted) < relative_time(p, *best, gpu, wanted);
      if (best == nullptr || faster) best = &candidate;
    }
    if (best != nullptr) {
      *kernel = best;
      return {};
    }
  }
  return make_status(StatusCode::kUnsupported,
                     "sm90 takes head sizes up to 256, and to 512 without softcap, bias or mask");
}

bool stages_what_others_load(const AttentionParams& p) {
  const bool staged = bias_term(p).source == TermSource::kElements || mask_term(p).source == TermSource::kElements;
  if (!staged || p.softcap > 0 || p.block_mask != nullptr || p.kv_len % 4 != 0) return false;
  const auto by_four = [](const void* data, const Strides& s, int bytes) {
    const uint64_t together = reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(s.batch * bytes) |
                              static_cast<uint64_t>(s.head * bytes) | static_cast<uint64_t>(s.row * bytes);
    return data == nullptr || (s.column == 1 && together % (4 * static_cast<uint64_t>(bytes)) == 0);
  };
  return by_four(p.attn_bias, p.bias_strides, 2) && by_four(p.attn_mask, p.mask_strides, 1);
}

Status make_plan(const AttentionParams& p, const Kernel& kernel, const Gpu& gpu, Plan* plan) {
  std::memset(static_cast<void*>(plan), 0, sizeof(*plan));
  ForwardParams& f = plan->params;
  f.q_len = static_cast<int32_t>(p.q_len);
  f.kv_len = static_cast<int32_t>(p.kv_len);
  f.v_head_size = static_cast<int32_t>(p.v_head_size);
  f.num_heads = static_cast<int32_t>(p.num_heads);
  f.heads_per_kv = static_cast<int32_t>(p.num_heads / p.kv_num_heads);

  f.left = p.window_left >= 0 ? static_cast<int32_t>(std::min<int64_t>(p.window_left, kUnbounded)) : kUnbounded;
  f.right = p.window_right >= 0 ? static_cast<int32_t>(std::min<int64_t>(p.window_right, kUnbounded)) : kUnbounded;
  if (p.is_causal) f.right = 0;
  f.bottom_right = p.causal_alignment == CausalAlignment::kBottomRight;

  f.output = p.output;
  f.output_batch = p.output_strides.batch;
  f.output_head = p.output_strides.head;
  f.output_row = p.output_strides.row;
  f.softmax_lse = p.softmax_lse;
  f.key_lengths = p.key_lengths;
  f.key_lengths_stride = static_cast<int32_t>(p.key_lengths_stride);
  f.sinks = p.sinks;
  f.sinks_stride = static_cast<int32_t>(p.sinks_stride);

  f.scale = scale_of(p);
  f.scale_log2 = static_cast<float>(kernel.scaled ? kLog2E : f.scale * kLog2E);
  f.softcap = p.softcap;
  f.mask_fill = p.mask_fill;
  f.bias = bias_term(p);
  f.mask = mask_term(p);
  f.block_mask = p.block_mask;
  f.block_mask_batch = p.block_mask_strides.batch;
  f.block_mask_head = p.block_mask_strides.head;
  f.block_mask_row = p.block_mask_strides.row;
  f.block_mask_column = static_cast<int32_t>(p.block_mask_strides.column);
  while (int64_t{1} << f.block_shift < p.block_size) ++f.block_shift;

  const int64_t q_tiles = ceil_div(p.q_len, kernel.block_q);
  const int64_t heads = p.batch * p.num_heads;
  if (q_tiles * heads >= int64_t{1} << 30) {
    return make_status(StatusCode::kUnsupported, "sm90 takes fewer than 2^30 tiles of queries");
  }
  f.q_tiles = static_cast<int32_t>(q_tiles);
  f.head_count = static_cast<int32_t>(heads);
  plan->grid = static_cast<int>(std::min<int64_t>(q_tiles * heads, gpu.multiprocessors));

  // Heads side by side where rows differ in length, or where heads share a bias or a mask: it is read once for all of
  // them. As many as have their keys and values in two thirds of L2, but enough for a round.
  const bool shared_term = (f.bias.source == TermSource::kTile && f.bias.tile_head == 0) ||
                           (f.mask.source == TermSource::kTile && f.mask.tile_head == 0);
  f.longest_first = f.right != kUnbounded;
  f.heads_fastest = f.longest_first || shared_term;
  int64_t section = heads;
  if (f.heads_fastest) {
    const double head_bytes =
        2.0 * static_cast<double>(p.kv_len * (p.head_size + p.v_head_size)) / static_cast<double>(f.heads_per_kv);
    section = 1;
    while (section < heads &&
           (section * q_tiles < 0.9 * plan->grid ||
            2.0 * static_cast<double>(section) * head_bytes <= 0.65 * static_cast<double>(gpu.l2_bytes))) {
      section *= 2;
    }
    const int64_t whole = plan->grid / std::gcd<int64_t>(plan->grid, q_tiles);  // the fewest that fill rounds
    if (kernel.whole_rounds && f.longest_first && whole * head_bytes <= 0.7 * static_cast<double>(gpu.l2_bytes)) {
      section = whole;
    }
    section = std::min(section, heads);
  }
  f.section_heads = static_cast<int32_t>(section);
  f.section_rounds = static_cast<int32_t>(ceil_div(section * q_tiles, plan->grid));

  const CUtensorMapDataType type =
      p.dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  // Twice that would bring the next head's row along where heads lie side by side.
  const CUtensorMapL2promotion panel = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  Status status = encode_map(
      {type, 2, p.query, p.batch, p.num_heads, p.q_len, p.head_size, p.query_strides, 64, 64, swizzle, panel},
      &plan->maps.query);
  if (status.ok()) {
    status = encode_map({type, 2, p.key, p.batch, p.kv_num_heads, p.kv_len, p.head_size, p.key_strides, kernel.block_kv,
                         64, swizzle, panel},
                        &plan->maps.key);
  }
  if (status.ok()) {
    status = encode_map({type, 2, p.value, p.batch, p.kv_num_heads, p.kv_len, p.v_head_size, p.value_strides,
                         kernel.block_kv, 64, swizzle, panel},
                        &plan->maps.value);
  }
  if (status.ok() && f.bias.source == TermSource::kTile) {
    status = encode_map({type, 2, p.attn_bias, f.bias.tile_batch ? p.batch : 1, f.bias.tile_head ? p.num_heads : 1,
                         p.q_len, p.kv_len, swap_broadcast(f.bias), 64, 64, swizzle},
                        &plan->maps.bias);
  }
  if (status.ok() && f.mask.source == TermSource::kTile) {
    status =
        encode_map({CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, p.attn_mask, f.mask.tile_batch ? p.batch : 1,
                    f.mask.tile_head ? p.num_heads : 1, p.q_len, p.kv_len, swap_broadcast(f.mask), 64, kernel.block_kv,
                    kernel.block_kv == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B},
                   &plan->maps.mask);
  }
  return status;
}

}  // namespace ortflash::sm90

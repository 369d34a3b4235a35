#include "validate.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <iterator>
#include <limits>

#include "status.h"

namespace ortflash {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

Status invalid(const char* sentence) { return make_status(StatusCode::kInvalidArgument, "%s", sentence); }

template <class... Arguments>
Status invalid(const char* format, Arguments... arguments) {
  return make_status(StatusCode::kInvalidArgument, format, arguments...);
}

// One tensor as validation sees it: extents and strides of its (batch, head, row, column) view.
struct View {
  const char* name;
  const char* axes;
  int64_t extents[4];
  Strides strides;
  DType dtype;
  const void* data;
  bool written = false;
};

// Sizes that every later step takes for granted.
Status check_sizes(const AttentionParams& p) {
  struct Named {
    const char* name;
    int64_t value;
    int64_t minimum;
  };
  const Named sizes[] = {
      {"batch", p.batch, 0},
      {"num_heads", p.num_heads, 0},
      {"kv_num_heads", p.kv_num_heads, 0},
      {"q_len", p.q_len, 0},
      {"kv_len", p.kv_len, 0},
      {"head_size", p.head_size, 1},
      {"v_head_size", p.v_head_size, 1},
  };
  for (const Named& size : sizes) {
    if (size.value < size.minimum || size.value > kMaxSize) {
      return invalid("%s is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, size.name, size.value, size.minimum,
                     kMaxSize);
    }
  }
  if ((p.kv_num_heads == 0) != (p.num_heads == 0) || (p.kv_num_heads > 0 && p.num_heads % p.kv_num_heads != 0)) {
    return invalid("query (B,N,S,D) = (%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ") and key (B,M,T,D) = (%" PRId64
                   ",%" PRId64 ",%" PRId64 ",%" PRId64 "): N = %" PRId64 " is not a multiple of M = %" PRId64,
                   p.batch, p.num_heads, p.q_len, p.head_size, p.batch, p.kv_num_heads, p.kv_len, p.head_size,
                   p.num_heads, p.kv_num_heads);
  }
  return {};
}

Status check_attributes(const AttentionParams& p) {
  if (!std::isfinite(p.scale)) return invalid("scale is %g; it must be finite (0 means 1/sqrt(head_size))", p.scale);
  if (!std::isfinite(p.softcap) || p.softcap < 0) {
    return invalid("softcap is %g; it must be finite and not negative (0 means none)", p.softcap);
  }
  if (p.attn_mask != nullptr && (std::isnan(p.mask_fill) || p.mask_fill == std::numeric_limits<float>::infinity())) {
    return invalid("mask_fill is %g; it must be finite or -inf", p.mask_fill);
  }
  if (p.window_left < -1) return invalid("window_left is %" PRId64 "; it must be -1 or more", p.window_left);
  if (p.window_right < -1) return invalid("window_right is %" PRId64 "; it must be -1 or more", p.window_right);
  if (p.block_mask != nullptr &&
      (p.block_size < 16 || p.block_size > 256 || (p.block_size & (p.block_size - 1)) != 0)) {
    return invalid("block_size is %" PRId64 "; it must be 16, 32, 64, 128 or 256", p.block_size);
  }
  if (p.attn_bias != nullptr && p.bias_dtype != p.dtype && p.bias_dtype != DType::kFloat32) {
    return invalid("attn_bias must have query's type or float32");
  }
  if (p.key_lengths != nullptr && p.key_lengths_stride != 0 && p.key_lengths_stride != 1) {
    return invalid("key_lengths has stride %" PRId64 "; it must be 1, or 0 for one element", p.key_lengths_stride);
  }
  if (p.sinks != nullptr && p.sinks_stride != 0 && p.sinks_stride != 1) {
    return invalid("sinks has stride %" PRId64 "; it must be 1, or 0 for one element", p.sinks_stride);
  }
  if (!(p.dropout_p >= 0 && p.dropout_p < 1)) {
    return invalid("dropout_p is %g; it must be at least 0 and less than 1", p.dropout_p);
  }
  if (p.dropout_p > 0 && p.dropout_seed == nullptr) {
    return invalid("dropout_p is %g, but dropout_seed (2,) is not given; it holds the seed and the offset of the mask",
                   p.dropout_p);
  }
  return {};
}

// Every offset into the view fits 63 bits of bytes, whatever the strides.
bool offsets_fit(const View& view) {
  const int64_t strides[4] = {view.strides.batch, view.strides.head, view.strides.row, view.strides.column};
  int64_t limit = std::numeric_limits<int64_t>::max() / 16;  // room for the four axes and four bytes an element
  for (int axis = 0; axis < 4; ++axis) {
    const int64_t steps = view.extents[axis] > 0 ? view.extents[axis] - 1 : 0;
    if (strides[axis] < 0 || (steps > 0 && strides[axis] > limit / steps / 4)) return false;
  }
  return true;
}

Status check_view(const View& view, bool with_pointers) {
  const bool empty = view.extents[0] == 0 || view.extents[1] == 0 || view.extents[2] == 0;
  if (empty) return {};
  if (view.strides.column != 1) {
    return invalid("%s %s has column stride %" PRId64 "; its last axis must be contiguous", view.name, view.axes,
                   view.strides.column);
  }
  if (!offsets_fit(view)) {
    return invalid("%s %s = (%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                   ") has a negative stride or one whose offsets pass 2^63",
                   view.name, view.axes, view.extents[0], view.extents[1], view.extents[2], view.extents[3]);
  }
  if (view.written) {
    const int64_t strides[3] = {view.strides.batch, view.strides.head, view.strides.row};
    const char* const names[3] = {"batch", "head", "row"};
    for (int axis = 0; axis < 3; ++axis) {
      if (view.extents[axis] > 1 && strides[axis] < view.extents[3]) {
        return invalid("%s has %s stride %" PRId64 ", less than its %" PRId64 " columns: elements would overlap",
                       view.name, names[axis], strides[axis], view.extents[3]);
      }
    }
  }
  if (with_pointers) {
    if (view.data == nullptr) return invalid("%s is null", view.name);
    if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(element_bytes(view.dtype)) != 0) {
      return invalid("%s is not aligned to its element size of %" PRId64 " bytes", view.name,
                     element_bytes(view.dtype));
    }
  }
  return {};
}

Status check_broadcast(const char* name, const Strides& strides, int64_t batch, int64_t heads, int64_t rows,
                       int64_t columns) {
  const View view{name, "(B,N,rows,columns)", {batch, heads, rows, columns}, strides, DType::kFloat32, nullptr};
  if (offsets_fit(view)) return {};
  return invalid("%s, broadcast to (%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                 "), has a negative stride or one whose offsets pass 2^63",
                 name, batch, heads, rows, columns);
}

// The gradient is summed along exactly the axes along which the bias is broadcast, and its elements lie apart.
Status check_bias_gradient(const AttentionGradParams& p) {
  const AttentionParams& f = p.forward;
  if (Status status = check_broadcast("d_attn_bias", p.d_bias_strides, f.batch, f.num_heads, f.q_len, f.kv_len);
      !status.ok()) {
    return status;
  }
  struct Axis {
    const char* name;
    int64_t extent, bias, gradient;  // strides
  };
  Axis axes[] = {{"batch", f.batch, f.bias_strides.batch, p.d_bias_strides.batch},
                 {"head", f.num_heads, f.bias_strides.head, p.d_bias_strides.head},
                 {"row", f.q_len, f.bias_strides.row, p.d_bias_strides.row},
                 {"column", f.kv_len, f.bias_strides.column, p.d_bias_strides.column}};
  std::sort(std::begin(axes), std::end(axes), [](const Axis& a, const Axis& b) { return a.gradient < b.gradient; });
  int64_t span = 1;  // elements from the first to the last of the axes seen so far
  for (const Axis& axis : axes) {
    if (axis.extent <= 1) continue;
    if ((axis.bias == 0) != (axis.gradient == 0)) {
      return invalid("d_attn_bias has %s stride %" PRId64 " and attn_bias %" PRId64
                     "; both must be 0 where the bias is broadcast, and nowhere else",
                     axis.name, axis.gradient, axis.bias);
    }
    if (axis.gradient == 0) continue;
    if (axis.gradient < span) {
      return invalid("d_attn_bias has %s stride %" PRId64 ", less than the %" PRId64
                     " elements of its inner axes: elements would overlap",
                     axis.name, axis.gradient, span);
    }
    span += (axis.extent - 1) * axis.gradient;
  }
  return {};
}

}  // namespace

Status validate(const AttentionParams& p, bool with_pointers) {
  if (Status status = check_sizes(p); !status.ok()) return status;
  if (Status status = check_attributes(p); !status.ok()) return status;

  const View views[] = {
      {"query", "(B,N,S,D)", {p.batch, p.num_heads, p.q_len, p.head_size}, p.query_strides, p.dtype, p.query},
      {"key", "(B,M,T,D)", {p.batch, p.kv_num_heads, p.kv_len, p.head_size}, p.key_strides, p.dtype, p.key},
      {"value", "(B,M,T,E)", {p.batch, p.kv_num_heads, p.kv_len, p.v_head_size}, p.value_strides, p.dtype, p.value},
      {"output",
       "(B,N,S,E)",
       {p.batch, p.num_heads, p.q_len, p.v_head_size},
       p.output_strides,
       p.dtype,
       p.output,
       true},
  };
  for (const View& view : views) {
    if (Status status = check_view(view, with_pointers); !status.ok()) return status;
  }
  if (p.attn_bias != nullptr) {
    if (Status status = check_broadcast("attn_bias", p.bias_strides, p.batch, p.num_heads, p.q_len, p.kv_len);
        !status.ok()) {
      return status;
    }
  }
  if (p.attn_mask != nullptr) {
    if (Status status = check_broadcast("attn_mask", p.mask_strides, p.batch, p.num_heads, p.q_len, p.kv_len);
        !status.ok()) {
      return status;
    }
  }
  if (p.block_mask != nullptr) {
    const int64_t block_rows = (p.q_len + p.block_size - 1) / p.block_size;
    const int64_t block_columns = (p.kv_len + p.block_size - 1) / p.block_size;
    if (Status status =
            check_broadcast("block_mask", p.block_mask_strides, p.batch, p.num_heads, block_rows, block_columns);
        !status.ok()) {
      return status;
    }
  }
  return {};
}

Status validate(const AttentionGradParams& p, bool with_pointers) {
  const AttentionParams& f = p.forward;
  if (Status status = validate(f, with_pointers); !status.ok()) return status;
  const int64_t rows[4] = {f.batch, f.num_heads, f.q_len, f.v_head_size};
  const View views[] = {
      {"d_output", "(B,N,S,E)", {rows[0], rows[1], rows[2], rows[3]}, p.d_output_strides, f.dtype, p.d_output},
      {"d_query", "(B,N,S,D)", {rows[0], rows[1], rows[2], f.head_size}, p.d_query_strides, f.dtype, p.d_query, true},
      {"d_key", "(B,M,T,D)", {f.batch, f.kv_num_heads, f.kv_len, f.head_size}, p.d_key_strides, f.dtype, p.d_key, true},
      {"d_value",
       "(B,M,T,E)",
       {f.batch, f.kv_num_heads, f.kv_len, f.v_head_size},
       p.d_value_strides,
       f.dtype,
       p.d_value,
       true},
  };
  for (const View& view : views) {
    if (Status status = check_view(view, with_pointers); !status.ok()) return status;
  }
  if (with_pointers && f.softmax_lse == nullptr && f.batch * f.num_heads * f.q_len > 0) {
    return invalid("softmax_lse is null; the gradients are computed from the forward's");
  }
  if (p.d_attn_bias != nullptr) {
    if (f.attn_bias == nullptr) return invalid("d_attn_bias is asked for, but there is no attn_bias");
    if (Status status = check_bias_gradient(p); !status.ok()) return status;
  }
  if (p.d_sinks != nullptr && f.sinks == nullptr) return invalid("d_sinks is asked for, but there are no sinks");
  return {};
}

}  // namespace ortflash

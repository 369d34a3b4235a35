#include "plan.h"

#include <algorithm>
#include <climits>
#include <cstdint>

#include "../sm80/plan.h"
#include "../status.h"
#include "implementation.h"

namespace ortflash::decode {
namespace {

constexpr int kLeastSharedBytes = 99 * 1024;  // that every GPU has for a thread block
constexpr int kReservedBytes = 1024;          // of shared memory, which CUDA takes for each thread block

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t partial_pitch(int64_t v_head_size) { return ceil_div(v_head_size, 4) * 4; }  // as in key_slices.cuh

// Slices leave up to two parts each (key_slices.cuh): rows of O, their states, and a flag. `slices` and `rows` are
// those of all tiles and key/value heads.
size_t parts_bytes(int64_t slices, int64_t rows, int64_t v_head_size) {
  const size_t row_bytes = static_cast<size_t>(partial_pitch(v_head_size)) * sizeof(float) + sizeof(float2);
  return 2 * (static_cast<size_t>(rows) * row_bytes + static_cast<size_t>(slices) * sizeof(uint64_t));
}

// Units of one key/value head: each batch element's keys begin a new one.
int64_t units_of(const AttentionParams& a, const Kernel& kernel) {
  return a.batch * ceil_div(a.kv_len, kernel.unit_keys);
}

// Slices of each head's keys: as many as fill the GPU once, each with at least one unit.
int choose_slices(const AttentionParams& a, const Kernel& kernel, int row_tiles, const Gpu& gpu) {
  const int by_memory = (gpu.shared_bytes + kReservedBytes) / (kernel.shared_bytes + kReservedBytes);
  const int64_t blocks = int64_t{1} * gpu.multiprocessors * std::min(kernel.blocks, by_memory);
  const int64_t slices = std::min(blocks / std::max<int64_t>(1, a.kv_num_heads * row_tiles), units_of(a, kernel));
  return static_cast<int>(std::max<int64_t>(1, slices));
}

}  // namespace

size_t Plan::workspace_bytes() const {
  if (!has_parts()) return 0;
  const int64_t slices = int64_t{1} * params.key_splits * (params.num_heads / params.group);
  return parts_bytes(slices * params.row_tiles, slices * params.group * params.q_len, params.v_head_size);
}

void Plan::place(void* workspace) {
  const int64_t rows = int64_t{2} * params.key_splits * params.num_heads * params.q_len;
  params.partial_output = static_cast<float*>(workspace);
  params.partial_state = reinterpret_cast<float2*>(params.partial_output + rows * partial_pitch(params.v_head_size));
  params.part_flags = reinterpret_cast<uint64_t*>(params.partial_state + rows);
}

KernelList kernels_for(DType dtype) { return dtype == DType::kFloat16 ? float16_kernels() : bfloat16_kernels(); }

Status make_plan(const AttentionParams& a, const Gpu& gpu, Plan* plan) {
  const int64_t rows = a.q_len * (a.num_heads / std::max<int64_t>(1, a.kv_num_heads));
  const KernelList kernels = kernels_for(a.dtype);
  plan->kernel = nullptr;
  for (int i = 0; i < kernels.count && plan->kernel == nullptr; ++i) {
    const Kernel& kernel = kernels.first[i];
    if (std::max(a.head_size, a.v_head_size) <= kernel.columns && rows <= kernel.max_rows &&
        kernel.shared_bytes <= gpu.shared_bytes) {
      plan->kernel = &kernel;
    }
  }
  if (plan->kernel == nullptr || a.q_len > kShortQuery) {
    return make_status(
        StatusCode::kUnsupported,
        "decode takes up to %d queries, and up to 64 rows of queries to a key/value head (32 past head size "
        "128); this call has %lld and %lld",
        kShortQuery, static_cast<long long>(a.q_len), static_cast<long long>(rows));
  }
  if (a.kv_len >= kUnbounded || a.batch * a.num_heads * a.q_len > INT_MAX || units_of(a, *plan->kernel) >= INT_MAX) {
    return make_status(
        StatusCode::kUnsupported,
        "decode takes up to 2^30 - 1 keys, 2^31 - 1 rows of queries and 2^35 keys of all batch elements");
  }
  KernelParams& p = plan->params;
  sm80::fill_params(a, &p);
  p.to_natural = 1.0f;
  p.factor = 1.44269504088896341f;
  p.packed_heads = p.group;
  p.value_splits = p.heads_per_section = 1;
  p.row_tiles = static_cast<int>(ceil_div(rows, plan->kernel->rows));
  p.key_splits = choose_slices(a, *plan->kernel, p.row_tiles, gpu);
  plan->grid = static_cast<unsigned>(a.kv_num_heads * p.row_tiles * p.key_splits);
  return {};
}

// By has_parts() and choose_slices(), over the kernels that a call in between may get.
size_t workspace_bound(const AttentionParams& smallest, const AttentionParams& largest) {
  constexpr int64_t kMultiprocessors = 256;  // of the largest GPU that there may be; today's have up to 160
  if (largest.dtype == DType::kFloat32 || smallest.q_len > kShortQuery) return 0;
  const int64_t group = std::max<int64_t>(1, largest.num_heads / std::max<int64_t>(1, largest.kv_num_heads));
  const int64_t rows = group * std::min<int64_t>(largest.q_len, kShortQuery);
  const KernelList kernels = kernels_for(largest.dtype);
  size_t bytes = 0;
  for (int i = 0; i < kernels.count; ++i) {
    const Kernel& kernel = kernels.first[i];
    if (kernel.columns < std::max(smallest.head_size, smallest.v_head_size)) continue;
    if (largest.kv_len > kernel.unit_keys) {
      const int64_t slices =
          std::min(kernel.blocks * kMultiprocessors, largest.kv_num_heads * units_of(largest, kernel));
      const int64_t slice_rows = slices * std::min<int64_t>(rows, kernel.max_rows);
      bytes = std::max(bytes, parts_bytes(2 * slices, slice_rows, largest.v_head_size));
    }
    // Later kernels are for larger heads, or for GPUs that haven't enough shared memory for this one.
    if (kernel.columns >= std::max(largest.head_size, largest.v_head_size) && rows <= kernel.max_rows &&
        kernel.shared_bytes <= kLeastSharedBytes) {
      break;
    }
  }
  return bytes;
}

}  // namespace ortflash::decode

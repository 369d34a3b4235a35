// Cuts Q, K and V into bf16 numbers (pieces.h). Bounded by memory: 4 bytes read an element, 4 or 6 written.
#include "../gpu.h"
#include "math.cuh"
#include "pieces.h"

namespace ortflash::sm80 {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 64;  // of one head, to a thread block

struct Source {
  const float* from;  // (batch, head, row, column)
  Strides strides;
  uint16_t* to;  // (batch, head, row, piece, pitch) contiguous
  int heads, length, columns;
  int pitch;            // columns rounded up; what is past them becomes 0
  int blocks_per_head;  // thread blocks
  bool vector;          // four adjacent elements, aligned, may be loaded together
};

struct Sources {
  Source operand[3];
  int first_block[3];
};

// The largest piece. Never infinite for a finite x: nothing finite could be added to that.
__device__ __forceinline__ float first_piece(float x) {
  const float rounded = bf16_to_float(pack_bf16x2(x, 0.0f) & 0xffff);
  return isinf(rounded) ? __uint_as_float(__float_as_uint(x) & 0xffff0000u) : rounded;
}

template <int PIECES>
__global__ void __launch_bounds__(kThreads) cut_kernel(const __grid_constant__ Sources sources) {
  const int block = blockIdx.x;
  const int which = (block >= sources.first_block[1]) + (block >= sources.first_block[2]);
  const Source& s = sources.operand[which];
  const int in_operand = block - sources.first_block[which];
  const int head_index = in_operand / s.blocks_per_head;
  const int first_row = (in_operand - head_index * s.blocks_per_head) * kRows;
  const int rows = min(s.length - first_row, kRows);
  const int batch = head_index / s.heads, head = head_index - batch * s.heads;
  const float* from =
      s.from + batch * s.strides.batch + head * s.strides.head + static_cast<int64_t>(first_row) * s.strides.row;
  uint16_t* to = s.to + (static_cast<int64_t>(head_index) * s.length + first_row) * PIECES * s.pitch;

  const int chunks = s.pitch / 8;
  for (int i = threadIdx.x; i < rows * chunks; i += kThreads) {
    const int row = i / chunks, column = (i - row * chunks) * 8;
    const float* source = from + row * s.strides.row + column;
    float x[8];
    if (s.vector && column + 8 <= s.columns) {
      const float4 low = __ldg(reinterpret_cast<const float4*>(source));
      const float4 high = __ldg(reinterpret_cast<const float4*>(source) + 1);
      x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
      x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = column + j < s.columns ? __ldg(source + j) : 0.0f;
    }
    uint32_t words[PIECES][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float low = first_piece(x[2 * j]), high = first_piece(x[2 * j + 1]);
      uint32_t rest[PIECES - 1];
      // An infinite element has nothing left: inf - inf is NaN.
      cut_pair(isinf(low) ? 0.0f : x[2 * j] - low, isinf(high) ? 0.0f : x[2 * j + 1] - high, rest);
      words[0][j] = pack_bf16x2(low, high);
#pragma unroll
      for (int piece = 1; piece < PIECES; ++piece) words[piece][j] = rest[piece - 1];
    }
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
      *reinterpret_cast<uint4*>(to + (row * PIECES + piece) * s.pitch + column) =
          make_uint4(words[piece][0], words[piece][1], words[piece][2], words[piece][3]);
    }
  }
}

}  // namespace

Status cut_operands(const AttentionParams& a, const PieceLayout& layout, void* workspace, void* stream) {
  Sources sources;
  int64_t blocks = 0;
  const auto add = [&](int index, const void* from, const Strides& strides, size_t offset, int64_t heads,
                       int64_t length, int64_t columns) {
    const uint64_t together = reinterpret_cast<uintptr_t>(from) | static_cast<uint64_t>(strides.batch * 4) |
                              static_cast<uint64_t>(strides.head * 4) | static_cast<uint64_t>(strides.row * 4);
    Source& s = sources.operand[index];
    s.from = static_cast<const float*>(from);
    s.strides = strides;
    s.to = reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(workspace) + offset);
    s.heads = static_cast<int>(heads);
    s.length = static_cast<int>(length);
    s.columns = static_cast<int>(columns);
    s.pitch = static_cast<int>(piece_columns(columns));
    s.blocks_per_head = static_cast<int>((length + kRows - 1) / kRows);
    s.vector = together % 16 == 0;
    sources.first_block[index] = static_cast<int>(blocks);
    blocks += a.batch * heads * s.blocks_per_head;
  };
  add(0, a.query, a.query_strides, layout.query, a.num_heads, a.q_len, a.head_size);
  add(1, a.key, a.key_strides, layout.key, a.kv_num_heads, a.kv_len, a.head_size);
  add(2, a.value, a.value_strides, layout.value, a.kv_num_heads, a.kv_len, a.v_head_size);
  void* arguments[] = {&sources};
  const void* kernel =
      layout.count == 3 ? reinterpret_cast<const void*>(&cut_kernel<3>) : reinterpret_cast<const void*>(&cut_kernel<2>);
  return cuda_status(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), arguments, 0,
                                      static_cast<cudaStream_t>(stream)),
                     "cutting fp32 into bf16 pieces");
}

}  // namespace ortflash::sm80

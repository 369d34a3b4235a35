// How each input type is multiplied on the tensor cores.
//
// A k-step is 32 bytes of a row for every type: 16 elements of fp16 or bf16, 8 of fp32. ldmatrix moves 16-byte rows
// whatever is in them, so operands that lie row by row in the product's inner dimension (Q, K) load the same way for
// all types; only V, whose inner dimension runs down the rows, needs a way per width (products.cuh).
#pragma once

#include <cstdint>

#include "ptx.cuh"

namespace ortflash::sm80 {

enum class Math {
  kFloat16,
  kBFloat16,
  kTf32,    // fp32 inputs rounded to TF32 (10 mantissa bits), as ONNX Runtime and PyTorch may do
  kTf32x3,  // fp32 inputs as the sum of two TF32 numbers; hi*hi + hi*lo + lo*hi, about fp32's own error
  kBf16x2,  // fp32 inputs as the sum of two bf16 numbers (pieces.cu): 16 mantissa bits and fp32's range
  kBf16x3,  // ... of three: all 24 bits
};

// bf16 numbers that an fp32 is the sum of; 1 where it isn't cut.
template <Math MATH>
inline constexpr int kPieces = MATH == Math::kBf16x2   ? 2
                               : MATH == Math::kBf16x3 ? 3
                                                       : 1;

// Of what lies in shared memory, ...
template <Math MATH>
inline constexpr int kElementBytes = (MATH == Math::kTf32 || MATH == Math::kTf32x3) ? 4 : 2;

// ... and of output and bias.
template <Math MATH>
inline constexpr int kTypeBytes = kPieces<MATH> > 1 ? 4 : kElementBytes<MATH>;

template <Math MATH>
inline constexpr int kStepElements = 32 / kElementBytes<MATH>;

// N registers of one operand, ready for mma: rounded to what the tensor cores read, or split in two.
template <Math MATH, int N>
struct Operand {
  uint32_t hi[N];

  __device__ __forceinline__ void set(const uint32_t (&raw)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      hi[i] = MATH == Math::kTf32 ? round_to_tf32(__uint_as_float(raw[i])) : raw[i];
    }
  }
};

template <int N>
struct Operand<Math::kTf32x3, N> {
  uint32_t hi[N];
  uint32_t lo[N];

  __device__ __forceinline__ void set(const uint32_t (&raw)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float x = __uint_as_float(raw[i]);
      hi[i] = round_to_tf32(x);
      lo[i] = round_to_tf32(x - __uint_as_float(hi[i]));
    }
  }
};

// d (16,8) += a (16,k-step) * two registers b of b (k-step,8), which start at FIRST.
template <Math MATH, int FIRST, int N>
__device__ __forceinline__ void multiply_add(float (&d)[4], const Operand<MATH, 4>& a, const Operand<MATH, N>& b) {
  if constexpr (MATH == Math::kFloat16) {
    mma_m16n8k16_f16(d, a.hi, b.hi[FIRST], b.hi[FIRST + 1]);
  } else if constexpr (MATH == Math::kBFloat16) {
    mma_m16n8k16_bf16(d, a.hi, b.hi[FIRST], b.hi[FIRST + 1]);
  } else if constexpr (MATH == Math::kTf32) {
    mma_m16n8k8_tf32(d, a.hi, b.hi[FIRST], b.hi[FIRST + 1]);
  } else {
    // The tensor cores truncate when they add to the accumulator, which adds up to a bias over a long row of keys. So
    // the three products of a k-step start from 0, the small ones first, and go to d by an addition that rounds.
    float sum[4] = {};
    mma_m16n8k8_tf32(sum, a.lo, b.hi[FIRST], b.hi[FIRST + 1]);
    mma_m16n8k8_tf32(sum, a.hi, b.lo[FIRST], b.lo[FIRST + 1]);
    mma_m16n8k8_tf32(sum, a.hi, b.hi[FIRST], b.hi[FIRST + 1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("add.f32 %0, %0, %1;" : "+f"(d[i]) : "f"(sum[i]));
  }
}

// Two fp32 in pieces, each piece of both in one register; the largest piece first.
template <int PIECES>
__device__ __forceinline__ void cut_pair(float low, float high, uint32_t (&pieces)[PIECES]) {
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    pieces[i] = pack_bf16x2(low, high);
    low -= bf16_to_float(pieces[i]);
    high -= __uint_as_float(pieces[i] & 0xffff0000u);
  }
}

// d (16m,8n) += a (16m,16) b (16,8n) in pieces, d's tiles from `first` on. a[m][piece] and b[n / 2][piece] are mma's
// operands. Piece i times piece j counts where i + j < PIECES, the smallest products first; the others are smaller than
// the last piece. Each goes over all tiles before the next: an mma needs the last one's accumulator only after a while.
template <int PIECES, int M_TILES, int N_PAIRS, int D_TILES>
__device__ __forceinline__ void multiply_add_pieces(float (&d)[M_TILES][D_TILES][4], int first,
                                                    const uint32_t (&a)[M_TILES][PIECES][4],
                                                    const uint32_t (&b)[N_PAIRS][PIECES][4]) {
  // Three pieces: sums start from 0 and are added with rounding, as in multiply_add.
  constexpr bool kRounded = PIECES == 3;
  float sum[M_TILES][2 * N_PAIRS][4] = {};
#pragma unroll
  for (int both = PIECES - 1; both >= 0; --both) {
#pragma unroll
    for (int i = 0; i <= both; ++i) {
#pragma unroll
      for (int n = 0; n < 2 * N_PAIRS; ++n) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          const uint32_t (&right)[4] = b[n / 2][both - i];
          mma_m16n8k16_bf16(kRounded ? sum[m][n] : d[m][first + n], a[m][i], right[n % 2 * 2], right[n % 2 * 2 + 1]);
        }
      }
    }
  }
  if constexpr (kRounded) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * N_PAIRS; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("add.f32 %0, %0, %1;" : "+f"(d[m][first + n][i]) : "f"(sum[m][n][i]));
      }
    }
  }
}

// Two fp32 as two adjacent 16-bit elements.
template <Math MATH>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  static_assert(kTypeBytes<MATH> == 2, "only 16-bit types pack in pairs");
  return MATH == Math::kFloat16 ? pack_f16x2(low, high) : pack_bf16x2(low, high);
}

}  // namespace ortflash::sm80

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
};

template <Math MATH>
inline constexpr int kElementBytes = (MATH == Math::kFloat16 || MATH == Math::kBFloat16) ? 2 : 4;

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

// Two fp32 as two adjacent 16-bit elements.
template <Math MATH>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  static_assert(kElementBytes<MATH> == 2, "only 16-bit types pack in pairs");
  return MATH == Math::kFloat16 ? pack_f16x2(low, high) : pack_bf16x2(low, high);
}

}  // namespace ortflash::sm80

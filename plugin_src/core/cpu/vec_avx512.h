// The vector type of the CPU kernels on AVX-512 (F, BW, DQ, VL): 16 fp32 lanes.
// Included inside an anonymous namespace's translation unit only: see tile_avx512.cc.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ortflash::cpu {
namespace {

using Vec = __m512;
using Lanes = __mmask16;  // a predicate per lane

constexpr int kLanes = 16;
// Accumulators of the matrix products: kProductRows x (1..kMaxVectors) vectors. 6 x 4 leaves 8 registers of 32.
constexpr int kMaxVectors = 4;
constexpr int kProductRows = 6;

inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec absolute(Vec a) { return _mm512_abs_ps(a); }
inline Vec copy_sign(Vec magnitude, Vec sign) {
  const __m512 bit = _mm512_set1_ps(-0.0f);
  return _mm512_or_ps(_mm512_andnot_ps(bit, magnitude), _mm512_and_ps(bit, sign));
}

inline Lanes less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }  // false where either is NaN
inline Lanes equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Lanes both(Lanes a, Lanes b) { return static_cast<Lanes>(a & b); }
inline bool any(Lanes a) { return a != 0; }
inline Vec select(Lanes which, Vec yes, Vec no) { return _mm512_mask_blend_ps(which, no, yes); }

// x * 2^n, n given as the fp32 value n + 1.5 * 2^23, so that its low bits are n.
inline Vec scale_by_power(Vec x, Vec shifted_n) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted_n), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), exponent));
}

inline Vec load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load_bfloat(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline Vec load_bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void store_half(uint16_t* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store_bfloat(uint16_t* p, Vec x) {  // round to nearest even; a NaN stays one
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i result = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)));
}

// rows[i][j] <-> rows[j][i]
inline void transpose(Vec (&rows)[kLanes]) {
  Vec pairs[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    const __m512d low0 = _mm512_castps_pd(pairs[i]), high0 = _mm512_castps_pd(pairs[i + 1]);
    const __m512d low1 = _mm512_castps_pd(pairs[i + 2]), high1 = _mm512_castps_pd(pairs[i + 3]);
    rows[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low0, low1));
    rows[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low0, low1));
    rows[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high0, high1));
    rows[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high0, high1));
  }
  // Now rows[4 * g + c] holds, in its quarter q, column 4 * q + c of rows 4 * g .. 4 * g + 3.
  for (int c = 0; c < 4; ++c) {
    const Vec low02 = _mm512_shuffle_f32x4(rows[c], rows[4 + c], 0x88);  // quarters 0, 2 of groups 0, 1
    const Vec low13 = _mm512_shuffle_f32x4(rows[c], rows[4 + c], 0xdd);  // quarters 1, 3 of groups 0, 1
    const Vec high02 = _mm512_shuffle_f32x4(rows[8 + c], rows[12 + c], 0x88);
    const Vec high13 = _mm512_shuffle_f32x4(rows[8 + c], rows[12 + c], 0xdd);
    pairs[c] = _mm512_shuffle_f32x4(low02, high02, 0x88);
    pairs[4 + c] = _mm512_shuffle_f32x4(low13, high13, 0x88);
    pairs[8 + c] = _mm512_shuffle_f32x4(low02, high02, 0xdd);
    pairs[12 + c] = _mm512_shuffle_f32x4(low13, high13, 0xdd);
  }
  for (int i = 0; i < kLanes; ++i) rows[i] = pairs[i];
}

}  // namespace
}  // namespace ortflash::cpu

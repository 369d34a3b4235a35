// The vector type of the CPU kernels on AVX2 with FMA and F16C: 8 fp32 lanes.
// Included by tile_avx2.cc only.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ortflash::cpu {
namespace {

using Vec = __m256;
using Lanes = __m256;  // a predicate per lane: all ones or all zeros

constexpr int kLanes = 8;
// 6 x 2 accumulators leave 4 registers of 16.
constexpr int kMaxVectors = 2;
constexpr int kProductRows = 6;

inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }  // a * b + c
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec absolute(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline Vec copy_sign(Vec magnitude, Vec sign) {
  return _mm256_or_ps(absolute(magnitude), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}

inline Lanes less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }  // false where either is NaN
inline Lanes equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline Lanes both(Lanes a, Lanes b) { return _mm256_and_ps(a, b); }
inline bool any(Lanes a) { return _mm256_movemask_ps(a) != 0; }
inline Vec select(Lanes which, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, which); }

// x * 2^n, n given as the fp32 value n + 1.5 * 2^23, so that its low bits are n.
inline Vec scale_by_power(Vec x, Vec shifted_n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted_n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}

inline Vec load_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec load_bfloat(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Vec load_bytes(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void store_half(uint16_t* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store_bfloat(uint16_t* p, Vec x) {  // round to nearest even; a NaN stays one
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

// rows[i][j] <-> rows[j][i]
inline void transpose(Vec (&rows)[kLanes]) {
  Vec pairs[kLanes], fours[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x20);
    rows[4 + c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x31);
  }
}

}  // namespace
}  // namespace ortflash::cpu

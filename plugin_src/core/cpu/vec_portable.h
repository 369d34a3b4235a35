// The vector type of the CPU kernels for any processor: 4 fp32 lanes as a vector of the compiler (GCC and Clang), which
// becomes SSE2, NEON or whatever the target has. Included by tile_portable.cc only.
#pragma once

#include <cstdint>
#include <cstring>

namespace ortflash::cpu {
namespace {

constexpr int kLanes = 4;
// 4 x 2 accumulators leave 8 registers of 16.
constexpr int kMaxVectors = 2;
constexpr int kProductRows = 4;

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t Lanes __attribute__((vector_size(16)));  // a predicate per lane: all ones or all zeros

typedef uint32_t Words __attribute__((vector_size(16)));

inline Lanes bits_of(Vec x) { return reinterpret_cast<Lanes>(x); }
inline Vec of_bits(Lanes x) { return reinterpret_cast<Vec>(x); }

inline Vec load(const float* p) {
  Vec x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
inline void store(float* p, Vec x) { std::memcpy(p, &x, sizeof(x)); }
inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
inline Vec zero() { return broadcast(0.0f); }
inline Vec add(Vec a, Vec b) { return a + b; }
inline Vec sub(Vec a, Vec b) { return a - b; }
inline Vec mul(Vec a, Vec b) { return a * b; }
inline Vec div(Vec a, Vec b) { return a / b; }
// Rounded twice: a true fma is a library call on processors without one.
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }  // a * b + c

inline Lanes less(Vec a, Vec b) { return a < b; }  // false where either is NaN
inline Lanes equal(Vec a, Vec b) { return a == b; }
inline Lanes both(Lanes a, Lanes b) { return a & b; }
inline bool any(Lanes a) { return (a[0] | a[1] | a[2] | a[3]) != 0; }
inline Vec select(Lanes which, Vec yes, Vec no) { return of_bits((bits_of(yes) & which) | (bits_of(no) & ~which)); }
inline Vec max(Vec a, Vec b) { return select(b < a, a, b); }

inline Vec absolute(Vec a) { return of_bits(bits_of(a) & 0x7fffffff); }
inline Vec copy_sign(Vec magnitude, Vec sign) {
  return of_bits((bits_of(magnitude) & 0x7fffffff) | (bits_of(sign) & ~0x7fffffff));
}

// x * 2^n, n given as the fp32 value n + 1.5 * 2^23, so that its low bits are n.
inline Vec scale_by_power(Vec x, Vec shifted_n) {
  return reinterpret_cast<Vec>(reinterpret_cast<Words>(x) + (reinterpret_cast<Words>(shifted_n) << 23));
}

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 31) return from_bits(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // subnormal or zero
  return from_bits(sign | to_bits(magnitude));
}
inline uint16_t float_to_half(float value) {  // round to nearest even
  const uint32_t bits = to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    result = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // normal: 2^-14 and more
    result = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {  // adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    result = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000u;
  }
  return static_cast<uint16_t>(sign | result);
}
inline uint16_t float_to_bfloat(float value) {  // round to nearest even; a NaN stays one
  const uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline Vec load_half(const uint16_t* p) {
  return Vec{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
}
inline Vec load_bfloat(const uint16_t* p) { return of_bits(Lanes{p[0], p[1], p[2], p[3]} << 16); }
inline Vec load_bytes(const uint8_t* p) {
  return Vec{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]), static_cast<float>(p[3])};
}
inline void store_half(uint16_t* p, Vec x) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(x[i]);
}
inline void store_bfloat(uint16_t* p, Vec x) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_bfloat(x[i]);
}

// rows[i][j] <-> rows[j][i]
inline void transpose(Vec (&rows)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float swapped = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = swapped;
    }
  }
}

}  // namespace
}  // namespace ortflash::cpu

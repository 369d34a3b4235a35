// The vector type of the CPU kernels in plain C++: 4 fp32 lanes, which a compiler turns into whatever the machine has.
// Included by tile_portable.cc only.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace ortflash::cpu {
namespace {

constexpr int kLanes = 4;
constexpr int kMaxVectors = 2;
constexpr int kProductRows = 4;

struct Vec {
  float lane[kLanes];
};
struct Lanes {
  bool lane[kLanes];
};

template <class Function>
inline Vec map(Function function) {
  Vec result;
  for (int i = 0; i < kLanes; ++i) result.lane[i] = function(i);
  return result;
}
template <class Function>
inline Lanes test(Function function) {
  Lanes result;
  for (int i = 0; i < kLanes; ++i) result.lane[i] = function(i);
  return result;
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

inline Vec load(const float* p) {
  return map([=](int i) { return p[i]; });
}
inline void store(float* p, Vec x) {
  for (int i = 0; i < kLanes; ++i) p[i] = x.lane[i];
}
inline Vec broadcast(float x) {
  return map([=](int) { return x; });
}
inline Vec zero() { return broadcast(0.0f); }
inline Vec add(Vec a, Vec b) {
  return map([=](int i) { return a.lane[i] + b.lane[i]; });
}
inline Vec sub(Vec a, Vec b) {
  return map([=](int i) { return a.lane[i] - b.lane[i]; });
}
inline Vec mul(Vec a, Vec b) {
  return map([=](int i) { return a.lane[i] * b.lane[i]; });
}
inline Vec div(Vec a, Vec b) {
  return map([=](int i) { return a.lane[i] / b.lane[i]; });
}
inline Vec fma(Vec a, Vec b, Vec c) {  // a * b + c, rounded twice: a true fma is a library call on the baseline
  return map([=](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}
inline Vec fnma(Vec a, Vec b, Vec c) {
  return map([=](int i) { return c.lane[i] - a.lane[i] * b.lane[i]; });
}
inline Vec max(Vec a, Vec b) {
  return map([=](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Vec absolute(Vec a) {
  return map([=](int i) { return from_bits(to_bits(a.lane[i]) & 0x7fffffffu); });
}
inline Vec copy_sign(Vec magnitude, Vec sign) {
  return map([=](int i) {
    return from_bits((to_bits(magnitude.lane[i]) & 0x7fffffffu) | (to_bits(sign.lane[i]) & 0x80000000u));
  });
}

inline Lanes less(Vec a, Vec b) {
  return test([=](int i) { return a.lane[i] < b.lane[i]; });
}
inline Lanes equal(Vec a, Vec b) {
  return test([=](int i) { return a.lane[i] == b.lane[i]; });
}
inline Lanes both(Lanes a, Lanes b) {
  return test([=](int i) { return a.lane[i] && b.lane[i]; });
}
inline bool any(Lanes a) {
  bool result = false;
  for (int i = 0; i < kLanes; ++i) result = result || a.lane[i];
  return result;
}
inline Vec select(Lanes which, Vec yes, Vec no) {
  return map([=](int i) { return which.lane[i] ? yes.lane[i] : no.lane[i]; });
}

// x * 2^n, n given as the fp32 value n + 1.5 * 2^23, so that its low bits are n.
inline Vec scale_by_power(Vec x, Vec shifted_n) {
  return map([=](int i) { return from_bits(to_bits(x.lane[i]) + (to_bits(shifted_n.lane[i]) << 23)); });
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

inline Vec load_as_float(const float* p) { return load(p); }
inline Vec load_half(const uint16_t* p) {
  return map([=](int i) { return half_to_float(p[i]); });
}
inline Vec load_bfloat(const uint16_t* p) {
  return map([=](int i) { return from_bits(static_cast<uint32_t>(p[i]) << 16); });
}
inline Vec load_bytes(const uint8_t* p) {
  return map([=](int i) { return static_cast<float>(p[i]); });
}
inline void store_half(uint16_t* p, Vec x) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(x.lane[i]);
}
inline void store_bfloat(uint16_t* p, Vec x) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_bfloat(x.lane[i]);
}

// rows[i][j] <-> rows[j][i]
inline void transpose(Vec (&rows)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float swapped = rows[i].lane[j];
      rows[i].lane[j] = rows[j].lane[i];
      rows[j].lane[i] = swapped;
    }
  }
}

}  // namespace
}  // namespace ortflash::cpu

// The emulator's wgmma: operands are named now and read when the product is waited for.
#pragma once

#include "emulator.h"

namespace ortflash::sm90 {

template <class T, int N>
struct Wgmma {
  static constexpr bool kBfloat16 = sizeof(T) == 2 && !__is_same(T, __half);

  static void scores(float (&d)[N / 2], uint64_t q, uint64_t k, int accumulate) {
    emulator::issue({kBfloat16, N, d, {}, q, k, false, false, accumulate != 0});
  }
  static void weighted(float (&d)[N / 2], const uint32_t& p0, const uint32_t& p1, const uint32_t& p2,
                       const uint32_t& p3, uint64_t v, int accumulate) {
    emulator::issue({kBfloat16, N, d, {&p0, &p1, &p2, &p3}, 0, v, false, true, accumulate != 0});
  }
  static void transposed(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {
    emulator::issue({kBfloat16, N, d, {}, a, b, true, true, accumulate != 0});
  }
};

}  // namespace ortflash::sm90

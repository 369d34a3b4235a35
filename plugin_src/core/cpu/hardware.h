// Which instruction sets this machine has.
#pragma once

#include "../status.h"

namespace ortflash::cpu {

constexpr int64_t kMaxHeadSize = 512;  // of every instruction set

inline Status any_hardware() { return {}; }

#ifdef ORTFLASH_CPU_X86
inline Status avx2_hardware() {
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return {};
  return make_status(StatusCode::kUnsupported, "cpu-avx2 needs AVX2, FMA and F16C, which this CPU lacks");
}

inline Status avx512_hardware() {
  if (avx2_hardware().ok() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return {};
  }
  return make_status(StatusCode::kUnsupported, "cpu-avx512 needs AVX-512 F, BW, DQ and VL, which this CPU lacks");
}
#endif

}  // namespace ortflash::cpu

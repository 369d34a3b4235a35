// Runs the Hopper kernels on a CPU, instruction by instruction: what ptx.cuh is on a GPU. For tests alone.
//
// Each CUDA thread is a fiber; fibers run one at a time until they wait for each other. The hardware's freedom is used
// against the kernel: a tensor copy writes at once, as early as it may, and a wgmma reads its operands and writes its
// accumulator only when somebody waits for it, as late as it may. Rings that hand a slot back too early, registers
// changed under a running product and barriers that never complete so become wrong numbers or an error. Timing,
// caches and memory ordering are not modelled.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#undef __device__
#undef __global__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __shared__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__

namespace ortflash::sm90 {

extern uint8_t raw[];  // the block's shared memory

namespace emulator {

struct Index {
  uint32_t x;
};
extern Index thread, block, grid;  // of the fiber that runs

// Lets other fibers run; `progressed` says that something changed since the last call.
void yield();
void progress();
// Ends the run with this sentence.
void fail(const char* reason);

template <class Condition>
void wait_until(Condition&& condition) {
  while (!condition()) yield();
  progress();
}

// What one lane gives, to all lanes of its warp: returns the 32 values in lane order, valid until the next call.
const uint64_t* exchange(uint64_t value);

void block_barrier();
void named_barrier(int id, int threads, bool wait);

// One lane's part of a wgmma.
struct Product {
  bool bfloat16;
  int columns;
  float* d;
  const uint32_t* a[4];  // registers, or null
  uint64_t a_descriptor, b_descriptor;
  bool a_transposed, b_transposed, accumulate;
};
void issue(const Product& product);
void commit();
void wait_for_products(int pending);

}  // namespace emulator

#define threadIdx (::ortflash::sm90::emulator::thread)
#define blockIdx (::ortflash::sm90::emulator::block)
#define gridDim (::ortflash::sm90::emulator::grid)

// ---------------------------------------------------------------------------------------- CUDA's own functions
using std::max;
using std::min;

inline void __syncthreads() { emulator::block_barrier(); }
inline void __syncwarp() { emulator::exchange(0); }

template <class T>
T shuffled(T value, uint32_t from) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = emulator::exchange(bits)[from];
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
T __shfl_xor_sync(uint32_t, T value, int mask) {
  return shuffled(value, threadIdx.x % 32 ^ static_cast<uint32_t>(mask));
}
template <class T>
T __shfl_sync(uint32_t, T value, int lane) {
  return shuffled(value, static_cast<uint32_t>(lane));
}
inline uint32_t __ballot_sync(uint32_t, bool condition) {
  const uint64_t* all = emulator::exchange(condition);
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= static_cast<uint32_t>(all[lane]) << lane;
  return bits;
}
inline bool __any_sync(uint32_t mask, bool condition) { return __ballot_sync(mask, condition) != 0; }

inline int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdividef(float a, float b) { return a / b; }

// ------------------------------------------------------------------------------------------- ptx.cuh's functions
inline uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(pointer) - raw);
}

struct Barrier {
  uint16_t count, pending;
  int32_t bytes : 31;
  uint32_t parity : 1;

  void init(int arrivals) {
    count = pending = static_cast<uint16_t>(arrivals);
    bytes = 0;
    parity = 0;
  }
  void arrive() { arrive_expecting(0); }
  void arrive_expecting(int expected) {
    bytes += expected;
    --pending;
    complete();
  }
  void landed(int arrived) {
    bytes -= arrived;
    complete();
  }
  // Until the phase of this parity is over.
  void wait(uint32_t phase) {
    emulator::wait_until([&] { return parity != phase; });
  }

 private:
  void complete() {
    if (pending != 0 || bytes != 0) return;
    pending = count;
    parity ^= 1;
    emulator::progress();
  }
};
static_assert(sizeof(Barrier) == 8, "as large as an mbarrier");

inline void fence_barrier_init() {}
inline void fence_proxy_async() {}
inline void named_barrier_sync(int id, int threads) { emulator::named_barrier(id, threads, true); }
inline void named_barrier_arrive(int id, int threads) { emulator::named_barrier(id, threads, false); }

void copy_box(void* destination, const CUtensorMap& map, Barrier& full, int column, int row, int head, int batch,
              uint64_t cache_policy);
inline uint64_t evict_first_policy() { return 0; }
inline uint64_t evict_last_policy() { return 0; }

template <int COUNT>
void give_registers_up_to() {}
template <int COUNT>
void take_registers_up_to() {}

inline void wgmma_fence() {}
inline void wgmma_commit() { emulator::commit(); }
template <int PENDING>
void wgmma_wait() {
  emulator::wait_for_products(PENDING);
}
template <int COUNT>
void pin(float (&)[COUNT]) {}

inline uint64_t matrix_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
  return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{leading_bytes >> 4} << 16 | uint64_t{stride_bytes >> 4} << 32 |
         uint64_t{1} << 62;
}

inline float exp2_approx(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline int opaque(int x) { return x; }

template <class T>
uint32_t pack(float low, float high);
template <>
inline uint32_t pack<__half>(float low, float high) {
  return __half_as_ushort(__float2half_rn(low)) | uint32_t{__half_as_ushort(__float2half_rn(high))} << 16;
}
template <>
inline uint32_t pack<__nv_bfloat16>(float low, float high) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(low)) | uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(high))}
                                                              << 16;
}
template <class T>
float2 unpack(uint32_t packed);
template <>
inline float2 unpack<__half>(uint32_t packed) {
  return {__half2float(__ushort_as_half(packed & 0xFFFF)), __half2float(__ushort_as_half(packed >> 16))};
}
template <>
inline float2 unpack<__nv_bfloat16>(uint32_t packed) {
  return {__bfloat162float(__ushort_as_bfloat16(packed & 0xFFFF)),
          __bfloat162float(__ushort_as_bfloat16(packed >> 16))};
}

inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  const uint64_t* rows = emulator::exchange(address);
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t matrix = 0; matrix < 4; ++matrix) {
    std::memcpy(&r[matrix], raw + rows[8 * matrix + lane / 4] + lane % 4 * 4, 4);
  }
}

inline void store_matrices(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  const uint32_t r[4] = {r0, r1, r2, r3}, lane = threadIdx.x % 32;
  uint64_t rows[32];
  std::memcpy(rows, emulator::exchange(address), sizeof(rows));
  for (uint32_t matrix = 0; matrix < 4; ++matrix) {
    std::memcpy(raw + rows[8 * matrix + lane / 4] + lane % 4 * 4, &r[matrix], 4);
  }
  __syncwarp();
}

// ----------------------------------------------------------------------------------- backward_ptx.cuh's functions
inline void copy_line(void* destination, const void* source, int bytes, Barrier& full) {
  std::memcpy(destination, source, static_cast<size_t>(bytes));
  full.landed(bytes);
}
inline void add_line(float* destination, const void* source, int bytes) {
  const auto* from = static_cast<const float*>(source);
  for (int i = 0; i < bytes / 4; ++i) destination[i] += from[i];
}
inline void bulk_commit() {}
inline void bulk_wait_read() {}
inline void bulk_wait() {}

}  // namespace ortflash::sm90

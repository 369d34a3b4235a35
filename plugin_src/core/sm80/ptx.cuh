// One function a PTX instruction; everything here exists on sm_80 and later.
#pragma once

#include <cstdint>

namespace ortflash::sm80 {

// The 32-bit address that shared-memory instructions take.
__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ------------------------------------------------------------------------------------------- global -> shared copies

// Copies `valid` of BYTES bytes and fills the rest with zeros; valid == 0 reads nothing. Both ends are BYTES-aligned.
template <int BYTES>
__device__ __forceinline__ void cp_async(uint32_t smem, const void* global, int valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(global), "r"(valid)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(smem), "l"(global), "n"(BYTES), "r"(valid)
                 : "memory");
  }
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most PENDING of this thread's newest groups are under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ------------------------------------------------------------------------------------------ shared -> register copies

// Four 8x8 matrices of 16-bit elements (8 rows of 16 bytes); lane 8i+r passes the address of row r of matrix i.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem));
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem));
}

__device__ __forceinline__ uint32_t load_shared_u32(uint32_t smem) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(smem));
  return value;
}

__device__ __forceinline__ uint4 load_shared_u128(uint32_t smem) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(smem));
  return v;
}

__device__ __forceinline__ void load_shared_u64(uint32_t (&v)[2], uint32_t smem) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(smem));
}

__device__ __forceinline__ void store_shared_u32(uint32_t smem, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared_u16(uint32_t smem, uint16_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(smem), "h"(value) : "memory");
}

// ------------------------------------------------------------------------------------------------------ tensor cores

// D += A B, D fp32 (16,8). A is (16,16) row-major, B (16,8) column-major.
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with A (16,8) and B (8,8) of TF32.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// -------------------------------------------------------------------------------------------------------- arithmetic

// The nearest TF32 number, as the bits of an fp32.
__device__ __forceinline__ uint32_t round_to_tf32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

// Two fp32 as one register of two 16-bit numbers, `low` in the low half.
__device__ __forceinline__ uint32_t pack_f16x2(float low, float high) {
  uint32_t y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

__device__ __forceinline__ uint32_t pack_bf16x2(float low, float high) {
  uint32_t y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

__device__ __forceinline__ float f16_to_float(uint32_t bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(static_cast<uint16_t>(bits)));
  return y;
}

__device__ __forceinline__ float bf16_to_float(uint32_t bits) { return __uint_as_float(bits << 16); }

}  // namespace ortflash::sm80

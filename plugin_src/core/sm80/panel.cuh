// A panel: some rows of Q, K or V by a fixed number of columns, in shared memory, the unit that is copied and
// multiplied.
//
// Which row of K is which column of S is free, as long as V's rows follow. Keys are dealt so that the lane which holds
// columns 2t and 2t + 1 of two neighbouring 8-column tiles holds keys 4t .. 4t + 3 of 16: four adjacent elements of a
// bias or mask row (score_mod.cuh). Q's rows keep their order.
//
// Rows are kPitch bytes apart, 64 or a multiple of 128. The 16-byte pieces of a row are permuted within each 128 bytes
// (or within its 64), so that the eight rows that one ldmatrix phase reads hit eight different bank groups.
#pragma once

#include <cstdint>

#include "ptx.cuh"

namespace ortflash::sm80 {

// Row (of 16) that is row `index` (of 8) of 8-column tile `tile` (of 2): see above.
__device__ __forceinline__ int dealt_key(int tile, int index) { return 4 * (index >> 1) + 2 * tile + (index & 1); }

// DEALT: rows are read in the order of dealt_key, eight at a time; otherwise in their own order.
template <int ROWS, int ROW_BYTES, bool DEALT>
struct Panel {
  static constexpr int kPieces = ROW_BYTES / 16;
  static constexpr int kPitch = ROW_BYTES <= 64 ? 64 : (ROW_BYTES + 127) / 128 * 128;
  static constexpr int kBytes = ROWS * kPitch;

  // What a row's piece numbers are permuted with; differs among eight rows that are read together. The exclusive or of
  // what its rows' bits give.
  static __device__ __forceinline__ constexpr int bank(int row) {
    if (kPitch == 64) return (DEALT ? row >> 2 : row >> 1) & 3;  // an odd row is in the other 64 bytes already
    return DEALT ? (row & 1) | (row >> 1 & 6) : row & 7;
  }

  static __device__ __forceinline__ uint32_t piece_offset(int row, int piece) {
    return row * kPitch + ((piece ^ bank(row)) << 4);
  }

  // Copies the panel by 16-byte cp.async; the caller commits. Row r starts at `from` + r * row_stride bytes; the first
  // `row_count` rows are there, `row_bytes` of each; everything else becomes zero.
  template <int THREADS>
  static __device__ __forceinline__ void copy_rows(uint32_t smem, const uint8_t* from, int64_t row_stride,
                                                   int row_count, int row_bytes) {
    constexpr int kAcross = kPitch / 16;  // threads to a row; idle where the row is shorter
    constexpr int kStep = THREADS / kAcross;
    static_assert(THREADS % kAcross == 0 && ROWS % kStep == 0 && (kStep & (kStep - 1)) == 0);
    const int piece = threadIdx.x % kAcross, row0 = threadIdx.x / kAcross;
    if (kPieces < kAcross && piece >= kPieces) return;
    const int bytes = min(max(row_bytes - piece * 16, 0), 16);
    const uint32_t to = smem + piece_offset(row0, piece);
    from += row0 * row_stride + piece * 16;
#pragma unroll
    for (int pass = 0; pass < ROWS / kStep; ++pass) {
      const int valid = row0 + pass * kStep < row_count ? bytes : 0;
      cp_async<16>((to ^ (bank(pass * kStep) << 4)) + pass * kStep * kPitch, from, valid);
      from += kStep * row_stride;
    }
  }

  // The same for rows that lie anywhere and start at multiples of copy_bytes = 16, 8, 4 or, for 0, of ELEMENT_BYTES.
  // row(r) is the address of row r, readable for valid_bytes(r).
  template <int THREADS, int ELEMENT_BYTES, class RowAddress, class ValidBytes>
  static __device__ __forceinline__ void copy_scattered(uint32_t smem, int copy_bytes, RowAddress row,
                                                        ValidBytes valid_bytes) {
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * kPieces; i += THREADS) {
      const int r = i / kPieces, piece = i % kPieces;
      const int valid = min(max(valid_bytes(r) - piece * 16, 0), 16);
      const uint8_t* from = row(r) + piece * 16;
      const uint32_t to = smem + piece_offset(r, piece);
      if (copy_bytes == 16) {
        cp_async<16>(to, from, valid);
      } else if (copy_bytes == 8) {
        cp_async<8>(to, from, min(valid, 8));
        cp_async<8>(to + 8, from + 8, max(valid - 8, 0));
      } else if (copy_bytes == 4) {
#pragma unroll
        for (int byte = 0; byte < 16; byte += 4) {
          cp_async<4>(to + byte, from + byte, min(max(valid - byte, 0), 4));
        }
      } else if constexpr (ELEMENT_BYTES == 2) {
#pragma unroll
        for (int byte = 0; byte < 16; byte += 2) {
          store_shared_u16(to + byte, byte < valid ? *reinterpret_cast<const uint16_t*>(from + byte) : uint16_t{0});
        }
      } else {
#pragma unroll
        for (int byte = 0; byte < 16; byte += 4) {
          store_shared_u32(to + byte, byte < valid ? *reinterpret_cast<const uint32_t*>(from + byte) : 0u);
        }
      }
    }
  }
};

}  // namespace ortflash::sm80

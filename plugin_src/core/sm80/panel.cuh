// A panel: some rows of Q, K or V by a fixed number of columns, in shared memory, the unit that is copied and multiplied.
//
// Rows are PITCH bytes apart, a multiple of 128. The 16-byte pieces of a row are permuted within each 128 bytes: piece c
// of row r lies at c ^ (r % 8), so the eight rows that one ldmatrix phase reads hit eight different bank groups.
#pragma once

#include <cstdint>

#include "ptx.cuh"

namespace ortflash::sm80 {

template <int ROWS, int ROW_BYTES>
struct Panel {
  static constexpr int kPieces = ROW_BYTES / 16;
  static constexpr int kPitch = (ROW_BYTES + 127) / 128 * 128;
  static constexpr int kBytes = ROWS * kPitch;

  static __device__ __forceinline__ uint32_t piece_offset(int row, int piece) {
    return row * kPitch + ((piece ^ (row & 7)) << 4);
  }

  // Copies the panel with 16-byte cp.async; the caller commits. row(r) is the address of row r's first column, readable
  // for valid_bytes(r) bytes (0: the row isn't there); the rest becomes zero.
  template <int THREADS, class RowAddress, class ValidBytes>
  static __device__ __forceinline__ void copy_aligned(uint32_t smem, RowAddress row, ValidBytes valid_bytes) {
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * kPieces; i += THREADS) {
      const int r = i / kPieces, piece = i % kPieces;
      const int valid = min(max(valid_bytes(r) - piece * 16, 0), 16);
      cp_async<16>(smem + piece_offset(r, piece), row(r) + piece * 16, valid);
    }
  }

  // The same for rows that start at multiples of copy_bytes = 8, 4 or, for 0, of ELEMENT_BYTES.
  template <int THREADS, int ELEMENT_BYTES, class RowAddress, class ValidBytes>
  static __device__ __forceinline__ void copy_unaligned(uint32_t smem, int copy_bytes, RowAddress row,
                                                     ValidBytes valid_bytes) {
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * kPieces; i += THREADS) {
      const int r = i / kPieces, piece = i % kPieces;
      const int valid = min(max(valid_bytes(r) - piece * 16, 0), 16);
      const uint8_t* from = row(r) + piece * 16;
      const uint32_t to = smem + piece_offset(r, piece);
      if (copy_bytes == 8) {
        cp_async<8>(to, from, min(valid, 8));
        cp_async<8>(to + 8, valid > 8 ? from + 8 : from, max(valid - 8, 0));
      } else if (copy_bytes == 4) {
        for (int byte = 0; byte < 16; byte += 4) {
          cp_async<4>(to + byte, valid > byte ? from + byte : from, min(max(valid - byte, 0), 4));
        }
      } else if constexpr (ELEMENT_BYTES == 2) {
        for (int byte = 0; byte < 16; byte += 2) {
          store_shared_u16(to + byte, byte < valid ? *reinterpret_cast<const uint16_t*>(from + byte) : uint16_t{0});
        }
      } else {
        for (int byte = 0; byte < 16; byte += 4) {
          store_shared_u32(to + byte, byte < valid ? *reinterpret_cast<const uint32_t*>(from + byte) : 0u);
        }
      }
    }
  }
};

}  // namespace ortflash::sm80

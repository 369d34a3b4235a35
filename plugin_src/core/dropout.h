// Dropout's mask: one bit for each (batch, head, row, column), the same on every implementation, never stored.
//
// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
//   key            = the first two words of philox(counter = (offset low, offset high, 0, 0), key = seed)
//   words          = philox(counter = (column / 8, row, head, batch), key)     one call for eight adjacent columns
//   half[column]   = bits 16 * (column % 2) and up of words[column % 8 / 2]    sixteen bits
//   kept           = half >= threshold,  threshold = round(dropout_p * 65536)
// `head` is a query head. A kept weight is multiplied by 1 / (1 - dropout_p); the softmax's denominator and softmax_lse
// know nothing of the dropout. The rate is thus dropout_p to within 2^-17.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define ORTFLASH_HOST_DEVICE __host__ __device__ __forceinline__
#else
// Without linkage: every file has its own copy, compiled with that file's instruction set.
#define ORTFLASH_HOST_DEVICE static inline
#endif

namespace ortflash {

constexpr int kDropoutColumns = 8;  // columns that share one Philox call

struct PhiloxKey {
  uint32_t low, high;
};

struct PhiloxWords {
  uint32_t word[4];
};

// Ten rounds.
ORTFLASH_HOST_DEVICE PhiloxWords philox(PhiloxWords counter, PhiloxKey key) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key.low, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key.high, static_cast<uint32_t>(product0)}};
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return counter;
}

// The key of one call, from dropout_seed's two numbers.
ORTFLASH_HOST_DEVICE PhiloxKey dropout_key(int64_t seed, int64_t offset) {
  const uint64_t s = static_cast<uint64_t>(seed), o = static_cast<uint64_t>(offset);
  const PhiloxWords words = philox({{static_cast<uint32_t>(o), static_cast<uint32_t>(o >> 32), 0, 0}},
                                   {static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32)});
  return {words.word[0], words.word[1]};
}

// The random words of columns 8 * group to 8 * group + 7 of one row.
ORTFLASH_HOST_DEVICE PhiloxWords dropout_words(PhiloxKey key, uint32_t batch, uint32_t head, uint32_t row,
                                               uint32_t group) {
  return philox({{group, row, head, batch}}, key);
}

// Whether the column at `within` (0 to 7) of a group is kept; `word` is the group's word[within / 2].
ORTFLASH_HOST_DEVICE bool dropout_keeps(uint32_t word, int within, uint32_t threshold) {
  return ((word >> (16 * (within % 2))) & 0xFFFFu) >= threshold;
}

// From dropout_p in [0, 1); 0 to 65536.
ORTFLASH_HOST_DEVICE uint32_t dropout_threshold(float dropout_p) {
  return static_cast<uint32_t>(dropout_p * 65536.0f + 0.5f);
}

// Factor on a kept weight.
ORTFLASH_HOST_DEVICE float dropout_scale(float dropout_p) { return 1.0f / (1.0f - dropout_p); }

}  // namespace ortflash

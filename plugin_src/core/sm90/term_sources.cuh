// Where attn_bias and attn_mask come from, decided when the kernel is compiled where it can be.
#pragma once

#include "forward_params.h"
#include "ptx.cuh"
#include "schedule.cuh"

namespace ortflash::sm90 {

template <class Tile>
class TermSources {
 public:
  __device__ __forceinline__ explicit TermSources(const ForwardParams& p) : p_(p) {}

  // Through the ring of terms:
  __device__ __forceinline__ bool bias_tiles() const {
    return Tile::ANY_TERMS ? p_.bias.source == TermSource::kTile : Tile::BIAS_TILES;
  }
  __device__ __forceinline__ bool mask_tiles() const {
    return Tile::ANY_TERMS ? p_.mask.source == TermSource::kTile : Tile::MASK_TILES;
  }
  __device__ __forceinline__ bool keys() const {
    if constexpr (!Tile::ANY_TERMS) return Tile::KEY_TERMS;
    return p_.bias.source == TermSource::kKeys || p_.mask.source == TermSource::kKeys;
  }
  __device__ __forceinline__ bool streamed() const { return bias_tiles() || mask_tiles() || keys(); }

  // By the warps that read them:
  __device__ __forceinline__ bool bias_elements() const {
    return Tile::ANY_TERMS && p_.bias.source == TermSource::kElements;
  }
  __device__ __forceinline__ bool mask_elements() const {
    return Tile::ANY_TERMS && p_.mask.source == TermSource::kElements;
  }

 private:
  const ForwardParams& p_;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Row 0, column 0 of a tile's batch and head.
template <class T>
__device__ __forceinline__ const T* term_data(const Term& term, const QueryTile& tile) {
  return static_cast<const T*>(term.data) + tile.batch * term.batch + tile.head * term.head;
}

// What all rows add to score j: the bias, or mask_fill where the mask is False; 0 past the last key.
template <class Tile>
__device__ __forceinline__ float key_term(const ForwardParams& p, const QueryTile& tile, int64_t j) {
  if (j >= p.kv_len) return 0.0f;
  if (p.mask.source == TermSource::kKeys && term_data<uint8_t>(p.mask, tile)[j * p.mask.column] == 0) {
    return p.mask_fill;
  }
  if (p.bias.source != TermSource::kKeys) return 0.0f;
  if (p.bias.is_float32) return term_data<float>(p.bias, tile)[j * p.bias.column];
  return to_float(term_data<typename Tile::Element>(p.bias, tile)[j * p.bias.column]);
}

}  // namespace ortflash::sm90

// The gradients' kernel: one thread block computes dK and dV of 128 keys and adds its part to dQ of every query that
// sees one of them. One warpgroup loads and takes dQ away, two multiply.
#pragma once

#include "backward_consumer.cuh"
#include "backward_producer.cuh"

namespace ortflash::sm90 {

template <class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_backward(const __grid_constant__ BackwardMaps maps, const __grid_constant__ BackwardParams params) {
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<BackwardStorage<Tile>*>(raw + (-smem_address(raw) & 1023));
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();

  const KeyTile tile = KeyTile::describe<Tile>(params);
  if (threadIdx.x < 128) {
    give_registers_up_to<Tile::PRODUCER_REGISTERS>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    if (Tile::MASKED && warp == 3) {
      if constexpr (Tile::MASKED) find_steps<Tile>(params, tile, shared);
    } else if (threadIdx.x % 32 == 0) {
      if (warp == 0) load_operands<Tile>(maps, params, tile, shared);
      if (warp == 1 || warp == 2) add_query_gradients<Tile>(params, tile, shared, warp - 1);
    }
  } else {
    take_registers_up_to<Tile::CONSUMER_REGISTERS>();
    GradientConsumer<Tile>(params, tile, shared).run();
  }
}

}  // namespace ortflash::sm90

// The kernel: one warpgroup loads, the others compute. Launched with at most one block a multiprocessor.
#pragma once

#include "consumer.cuh"
#include "producer.cuh"

namespace ortflash::sm90 {

template <class Tile>
__global__ void __launch_bounds__(Tile::THREADS, 1)
    attention_forward(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardParams params) {
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<SharedStorage<Tile>*>(raw + (-smem_address(raw) & 1023));
  if (threadIdx.x == 0) shared.init_barriers();
  if constexpr (Tile::SUM_BY_PRODUCT) shared.write_ones();
  __syncthreads();

  if (threadIdx.x < 128) {
    if constexpr (Tile::GIVES_REGISTERS) give_registers_up_to<Tile::PRODUCER_REGISTERS>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) {
      OperandLoader<Tile>(maps, params, shared).run();
    } else if (warp == 1) {
      answer_empty_tiles<Tile>(params);
    } else if (warp == 2) {
      if constexpr (Tile::TERMS) TermLoader<Tile>(maps, params, shared).run();
    }
  } else {
    if constexpr (Tile::GIVES_REGISTERS) take_registers_up_to<Tile::CONSUMER_REGISTERS>();
    Consumer<Tile>(params, shared).run();
  }
}

}  // namespace ortflash::sm90

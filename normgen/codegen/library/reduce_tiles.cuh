#pragma once

#include "reduce_tile.cuh"
#include "share_of_slots.cuh"

// As reduce_row, by reduce_tile.
template <int kWarps, typename State>
__device__ __forceinline__ State reduce_tiles(State s, State* slots) {
  s = reduce_tile<32>(s);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32 % kWarps] = s;
  __syncthreads();
  return reduce_tile<lanes_for(kWarps)>(share_of_slots<kWarps>(slots));
}

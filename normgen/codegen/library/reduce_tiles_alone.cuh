#pragma once

#include "named_barrier.cuh"
#include "reduce_tile.cuh"
#include "share_of_slots.cuh"

// As reduce_row_alone, by reduce_tile.
template <int kWarps, typename State>
__device__ __forceinline__ State reduce_tiles_alone(State s, State* slots, int slot) {
  s = reduce_tile<32>(s);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32 % kWarps] = s;
  named_barrier(1 + slot, kWarps * 32);
  return reduce_tile<lanes_for(kWarps)>(share_of_slots<kWarps>(slots));
}

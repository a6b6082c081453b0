#pragma once

#include "reduce_tile.cuh"
#include "rows_meet.cuh"
#include "share_of_slots.cuh"

// As reduce_row_beside, by reduce_tile.
template <int kWarps, typename State>
__device__ __forceinline__ State reduce_tiles_beside(State s, State* slots, int slot) {
  s = reduce_tile<32>(s);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32 % kWarps] = s;
  rows_meet<kWarps>(slot);
  return reduce_tile<lanes_for(kWarps)>(share_of_slots<kWarps>(slots));
}

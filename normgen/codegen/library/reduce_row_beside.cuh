#pragma once

#include "reduce_lanes.cuh"
#include "rows_meet.cuh"
#include "share_of_slots.cuh"

// As reduce_row, for row number `slot` of a block that works on several.
template <int kWarps, typename State>
__device__ __forceinline__ State reduce_row_beside(State s, State* slots, int slot) {
  s = reduce_lanes<32>(s);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32 % kWarps] = s;
  rows_meet<kWarps>(slot);
  return reduce_lanes<lanes_for(kWarps)>(share_of_slots<kWarps>(slots));
}

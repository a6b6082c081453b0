#pragma once

#include "named_barrier.cuh"
#include "reduce_lanes.cuh"
#include "share_of_slots.cuh"

// As reduce_row, but rows side by side do not wait for each other: this one is number `slot` of its block.
template <int kWarps, typename State>
__device__ __forceinline__ State reduce_row_alone(State s, State* slots, int slot) {
  s = reduce_lanes<32>(s);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32 % kWarps] = s;
  named_barrier(1 + slot, kWarps * 32);
  return reduce_lanes<lanes_for(kWarps)>(share_of_slots<kWarps>(slots));
}

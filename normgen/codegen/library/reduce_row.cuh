#pragma once

#include "reduce_lanes.cuh"
#include "share_of_slots.cuh"

// Warps first, then every warp combines the warps' states redundantly: one barrier, no broadcast.
template <int kWarps, typename State>
__device__ __forceinline__ State reduce_row(State s, State* slots) {
  s = reduce_lanes<32>(s);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32 % kWarps] = s;
  __syncthreads();
  return reduce_lanes<lanes_for(kWarps)>(share_of_slots<kWarps>(slots));
}

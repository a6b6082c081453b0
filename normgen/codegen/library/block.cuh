#pragma once  // Block

#include "reduce_lanes.cuh"
#include "share_of_slots.cuh"
#include "threads.cuh"

// A block is a team. Warps first, then every warp combines the warps' states redundantly: one barrier, no broadcast.
template <int kThreadsPerRow, class Named = WholeWarp>
struct Block : Threads<kThreadsPerRow, 1> {
  enum : int { kWarps = kThreadsPerRow / 32 };
  template <typename State> using Slots = State[kWarps];
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, State (&slots)[kWarps]) {
    s = reduce_lanes<32, Named>(s);
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32 % kWarps] = s;
    __syncthreads();
    return reduce_lanes<lanes_for(kWarps), Named>(share_of_slots<kWarps>(slots));
  }
};

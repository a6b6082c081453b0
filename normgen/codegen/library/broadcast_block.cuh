#pragma once  // BroadcastBlock

#include "combine_in_pairs.cuh"
#include "state_of_warp.cuh"
#include "threads.cuh"

// A block is a team. Warps first, then every thread reads the states of all warps, which shared memory broadcasts. One
// read and a few additions behind each other wait less than the shuffles of a Block.
template <int kThreadsPerRow>
struct BroadcastBlock : Threads<kThreadsPerRow, 1> {
  enum : int { kWarps = kThreadsPerRow / 32 };
  template <typename State> using Slots = StatesOfWarps<kWarps, State>;
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, StatesOfWarps<kWarps, State>& slots) {
    s = state_of_warp(s, 0);
    if (threadIdx.x % 32 == 0) slots.states[threadIdx.x / 32] = s;
    __syncthreads();
    return combine_in_pairs<0, kWarps>(slots.states);
  }
};

#pragma once

#include "reduce_lanes.cuh"
#include "threads.cuh"

// Lanes of a warp are a team: they combine their states by shuffles, and need no shared memory.
template <int kThreadsPerRow, int kRowsPerBlock>
struct Lanes : Threads<kThreadsPerRow, kRowsPerBlock> {
  struct Nothing {};
  template <typename State> using Slots = Nothing;
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, Nothing&) {
    return reduce_lanes<kThreadsPerRow>(s);
  }
  static __device__ __forceinline__ bool any(bool condition) {
    return kThreadsPerRow < 32 ? __any_sync(0xffffffffu, condition) : condition;
  }
};

#pragma once

#include "reduce_row.cuh"
#include "threads.cuh"

// A block is a team.
template <int kThreadsPerRow>
struct Block : Threads<kThreadsPerRow, 1> {
  template <typename State> using Slots = State[kThreadsPerRow / 32];
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, State (&slots)[kThreadsPerRow / 32]) {
    return reduce_row<kThreadsPerRow / 32>(s, slots);
  }
};

#pragma once  // Lanes

#include "reduce_lanes.cuh"
#include "threads.cuh"

// Lanes of a warp are a team: they combine by shuffles alone.
template <int kThreadsPerRow, int kRowsPerBlock, class Named = WholeWarp>
struct Lanes : Threads<kThreadsPerRow, kRowsPerBlock> {
  template <typename State> struct Slots {};
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, Slots<State>&) {
    return reduce_lanes<kThreadsPerRow, Named>(s);
  }
};

#pragma once

#include "reduce_tiles.cuh"
#include "threads.cuh"

// As Block, by reduce_tile.
template <int kThreadsPerRow>
struct BlockTiles : Threads<kThreadsPerRow, 1> {
  template <typename State> using Slots = State[kThreadsPerRow / 32];
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, State (&slots)[kThreadsPerRow / 32]) {
    return reduce_tiles<kThreadsPerRow / 32>(s, slots);
  }
};

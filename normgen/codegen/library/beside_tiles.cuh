#pragma once

#include "reduce_tiles_beside.cuh"
#include "threads.cuh"

// As Beside, by reduce_tile.
template <int kThreadsPerRow, int kRowsPerBlock>
struct BesideTiles : Threads<kThreadsPerRow, kRowsPerBlock> {
  template <typename State> using Slots = State[kRowsPerBlock][kThreadsPerRow / 32];
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, State (&slots)[kRowsPerBlock][kThreadsPerRow / 32]) {
    const int slot = threadIdx.x / kThreadsPerRow;
    return reduce_tiles_beside<kThreadsPerRow / 32>(s, slots[slot], slot);
  }
};

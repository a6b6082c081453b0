#pragma once

#include "reduce_row_beside.cuh"
#include "threads.cuh"

// Several warps are a team, and a block has several of them.
template <int kThreadsPerRow, int kRowsPerBlock>
struct Beside : Threads<kThreadsPerRow, kRowsPerBlock> {
  template <typename State> using Slots = State[kRowsPerBlock][kThreadsPerRow / 32];
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, State (&slots)[kRowsPerBlock][kThreadsPerRow / 32]) {
    const int slot = threadIdx.x / kThreadsPerRow;
    return reduce_row_beside<kThreadsPerRow / 32>(s, slots[slot], slot);
  }
};

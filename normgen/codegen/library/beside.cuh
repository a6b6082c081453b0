#pragma once  // Beside

#include "reduce_lanes.cuh"
#include "rows_meet.cuh"
#include "share_of_slots.cuh"
#include "threads.cuh"

// Several warps are a team, and a block has several teams. They combine as the warps of a Block do.
template <int kThreadsPerRow, int kRowsPerBlock, class Named = WholeWarp>
struct Beside : Threads<kThreadsPerRow, kRowsPerBlock> {
  enum : int { kWarps = kThreadsPerRow / 32 };
  template <typename State> using Slots = State[kRowsPerBlock][kWarps];
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, State (&slots)[kRowsPerBlock][kWarps]) {
    const int block_row = threadIdx.x / kThreadsPerRow;
    State* own = slots[block_row];
    s = reduce_lanes<32, Named>(s);
    if (threadIdx.x % 32 == 0) own[threadIdx.x / 32 % kWarps] = s;
    rows_meet<kWarps>(block_row);
    return reduce_lanes<lanes_for(kWarps), Named>(share_of_slots<kWarps>(own));
  }
};

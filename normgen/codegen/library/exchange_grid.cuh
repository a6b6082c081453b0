#pragma once  // arrival, exchange_grid, leave_grid

#include "await_turn.cuh"
#include "fence_device.cuh"
#include "reduce_lanes.cuh"
#include "share_of_slots.cuh"

// kParts blocks of a grid that share a row, all of them resident, exchange states through memory. A counter of theirs,
// zero before the first call, counts who has come: its top bit turns when all have, and the rest of it is zero again.
// What a block adds to it: of the kParts numbers the sum is 2^31.
template <int kParts>
__device__ __forceinline__ unsigned arrival(int part) { return part == 0 ? 0x80000000u - (kParts - 1) : 1u; }

// The block's warps become one state, which goes to the block's place in the set; when all have come the first warp
// combines the states of the set, in the same order in every block, and `slots` hands the row's state to the others.
// Exchanges take turns at two sets: number n uses set n % 2, and leaves the counter's top bit at (n + 1) % 2. A set is
// written again by blocks that have passed the exchange between, to which every block came once it had read the set.
template <int kWarps, int kParts, typename State>
__device__ __forceinline__ State exchange_grid(
    State s, State (&slots)[kWarps + 1], State* set, unsigned* counter, int part, unsigned exchange) {
  s = reduce_lanes<32>(s);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x < 32) {
    s = reduce_lanes<lanes_for(kWarps)>(share_of_slots<kWarps>(slots));
    if (threadIdx.x == 0) {
      set[part] = s;
      fence_device();  // the state is there before the block is counted
      atomicAdd(counter, arrival<kParts>(part));
      await_turn(counter, exchange % 2);
      fence_device();  // what the others wrote before they were counted is seen
    }
    __syncwarp();
    s = reduce_lanes<lanes_for(kParts)>(share_of_slots<kParts>(set));
    if (threadIdx.x == 0) slots[kWarps] = s;
  }
  __syncthreads();
  return slots[kWarps];
}

// After an odd number of exchanges the counter's top bit is set: all blocks come once more, and the next call finds
// zero.
template <int kParts>
__device__ __forceinline__ void leave_grid(unsigned* counter, int part, unsigned exchanges) {
  if (threadIdx.x == 0 && exchanges % 2 == 1) atomicAdd(counter, arrival<kParts>(part));
}

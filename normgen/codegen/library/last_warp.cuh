#pragma once  // takes_last_ticket_of

#include "fence_device.cuh"

// Whether this warp is the last of `count` to take a ticket, which it leaves ready for the next call. What the others
// wrote, or knew of, before they took theirs is seen.
__device__ __forceinline__ bool takes_last_ticket_of(unsigned* ticket, unsigned count) {
  __syncwarp();
  unsigned mine = 0;
  if (threadIdx.x % 32 == 0) {
    fence_device();
    mine = atomicAdd(ticket, 1u) + 1;
    fence_device();
    if (mine == count) *ticket = 0;
  }
  __syncwarp();
  return __shfl_sync(0xffffffffu, mine, 0) == count;
}

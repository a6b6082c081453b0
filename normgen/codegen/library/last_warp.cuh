#pragma once  // takes_last_ticket_of

// Whether this warp is the last of `count` to take a ticket, which it leaves ready for the next call. What the others
// wrote before they took theirs is seen.
__device__ __forceinline__ bool takes_last_ticket_of(unsigned* ticket, unsigned count) {
  __threadfence();
  __syncwarp();
  unsigned taken = 0;
  if (threadIdx.x % 32 == 0) {
    taken = atomicAdd(ticket, 1u) + 1;
    __threadfence();
    if (taken == count) *ticket = 0;
  }
  __syncwarp();
  return __shfl_sync(0xffffffffu, taken, 0) == count;
}

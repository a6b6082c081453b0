#pragma once  // takes_last_ticket

// Whether this block is the last of the grid to take a ticket. What the others wrote before they took theirs is seen.
// `is_last` is a variable in shared memory.
__device__ __forceinline__ bool takes_last_ticket(unsigned* ticket, bool& is_last) {
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(ticket, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (is_last) __threadfence();
  return is_last;
}

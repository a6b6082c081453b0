#pragma once  // fence_device

// What stands before it is seen by the device before what stands behind it: __threadfence() would order this thread's
// accesses with those of all others, too, which takes longer.
__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

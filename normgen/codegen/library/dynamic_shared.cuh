#pragma once  // dynamic_shared

// Shared memory whose size the launch decides.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return bytes;
}

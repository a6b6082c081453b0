#pragma once  // prefetch_map

// The copy engine will need the tensor map.
__device__ __forceinline__ void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

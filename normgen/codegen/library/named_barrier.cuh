#pragma once  // named_barrier

// Waits for that many threads, whole warps, at barrier `id` of 1 to 15.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

#pragma once  // cp_async, cp_async_commit, cp_async_wait

// Copies 4, 8 or 16 bytes to shared memory past the registers; 16 bytes leave no line in L1.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(global), "n"(kBytes) : "memory");
  }
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the newest kGroups groups of this thread's copies have arrived.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(kGroups) : "memory");
}

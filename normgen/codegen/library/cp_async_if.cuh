#pragma once  // cp_async_if

// As cp_async; where it is not inside, nothing is read, and zeros arrive.
template <int kBytes>
__device__ __forceinline__ void cp_async_if(bool inside, void* shared, const void* global) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = inside ? kBytes : 0;
  if (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(global), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
        :: "r"(to), "l"(global), "n"(kBytes), "r"(bytes) : "memory");
  }
}

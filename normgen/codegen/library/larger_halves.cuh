#pragma once  // larger_halves

// Of two pairs of 16-bit numbers without a sign the larger ones.
__device__ __forceinline__ unsigned larger_halves(unsigned a, unsigned b) {
#if __CUDA_ARCH__ >= 900
  unsigned larger;
  asm("max.u16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
#else
  return max(a & 0xffff0000u, b & 0xffff0000u) | max(a & 0xffffu, b & 0xffffu);
#endif
}

#pragma once  // opaque

// The compiler no longer knows where the bits come from.
__device__ __forceinline__ void opaque(unsigned& bits) { asm volatile("" : "+r"(bits)); }

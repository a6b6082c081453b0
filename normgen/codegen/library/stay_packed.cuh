#pragma once  // stay_packed

#include "opaque.cuh"
#include "vec.cuh"

// Hides from the compiler what the vector holds: it would convert kept parameters to floats once, for all rows, and
// keep those, in twice the registers.
template <int N, typename T>
__device__ __forceinline__ void stay_packed(Vec<T, N>& vec) {
  #pragma unroll
  for (int i = 0; i < Vec<T, N>::kRegisters; ++i) opaque(vec.bits[i]);
}

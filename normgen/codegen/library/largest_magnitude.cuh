#pragma once  // largest_magnitude

#include "extremum.cuh"
#include "larger_halves.cuh"
#include "vec.cuh"

// The largest |x| of a vector of 16-bit floats: without their signs, bits have the order of the numbers, NaN above all.
template <typename T, int N>
__device__ __forceinline__ float largest_magnitude(const Vec<T, N>& vec) {
  Vec<T, 2> largest = {};
  #pragma unroll
  for (int i = 0; i < N / 2; ++i) largest.bits[0] = larger_halves(largest.bits[0], vec.bits[i] & 0x7fff7fffu);
  return maximum(element(largest, 0), element(largest, 1));
}

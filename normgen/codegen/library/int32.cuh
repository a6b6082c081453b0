#pragma once  // int32, element, pack

#include "vec.cuh"
#include "whole_numbers.cuh"

struct int32 {
  int bits;
};

// Exact in float32 up to 2^24.
template <int N>
__device__ __forceinline__ float element(const Vec<int32, N>& vec, int i) {
  return static_cast<float>(static_cast<int>(vec.bits[i]));
}

template <int N>
__device__ __forceinline__ void pack(Vec<int32, N>& vec, const float (&values)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) vec.bits[i] = static_cast<unsigned>(float_to_int32(values[i]));
}

#pragma once  // int64, element, pack

#include "vec.cuh"
#include "whole_numbers.cuh"

struct int64 {
  long long bits;
};

// Two registers an element, the low half first.
template <int N>
__device__ __forceinline__ float element(const Vec<int64, N>& vec, int i) {
  const unsigned long long bits = vec.bits[2 * i] | static_cast<unsigned long long>(vec.bits[2 * i + 1]) << 32;
  return static_cast<float>(static_cast<long long>(bits));
}

template <int N>
__device__ __forceinline__ void pack(Vec<int64, N>& vec, const float (&values)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) {
    const unsigned long long bits = static_cast<unsigned long long>(float_to_int64(values[i]));
    vec.bits[2 * i] = static_cast<unsigned>(bits);
    vec.bits[2 * i + 1] = static_cast<unsigned>(bits >> 32);
  }
}

#pragma once  // filled

#include "vec.cuh"

// N elements that all have that value.
template <typename T, int N>
__device__ __forceinline__ Vec<T, N> filled(float value) {
  float values[N];
  #pragma unroll
  for (int i = 0; i < N; ++i) values[i] = value;
  Vec<T, N> vec;
  pack(vec, values);
  return vec;
}

#pragma once  // rounded

#include "vec.cuh"

// A value as a T holds it, in float32.
template <typename T>
__device__ __forceinline__ float rounded(float value) {
  const float values[1] = {value};
  Vec<T, 1> vec;
  pack(vec, values);
  return element(vec, 0);
}

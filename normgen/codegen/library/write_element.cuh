#pragma once  // write_element

#include "vec.cuh"

// elements[at] = value, rounded as it is stored.
template <typename T>
__device__ __forceinline__ void write_element(T* elements, int at, float value) {
  Vec<T, 1> vec = {};
  const float values[1] = {value};
  pack(vec, values);
  write(elements + at, vec);
}

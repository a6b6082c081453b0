#pragma once  // row_value, write_row_value

#include "vec.cuh"

// One value of a row, stored as a T, in float32.
template <typename T>
__device__ __forceinline__ float row_value(const T* value) { return element(read<1>(value), 0); }

template <typename T>
__device__ __forceinline__ void write_row_value(T* address, float value) {
  const float values[1] = {value};
  Vec<T, 1> vec;
  pack(vec, values);
  write(address, vec);
}

#pragma once  // column_of

// The column that a row names by its number; -1 where the number is none, as -100 or 2.5.
__device__ __forceinline__ int column_of(float index) {
  if (!(index >= 0.0f && index < 2147483648.0f)) return -1;
  const int column = static_cast<int>(index);
  return static_cast<float>(column) == index ? column : -1;
}

#pragma once  // taken_apart

#include "column_of.cuh"
#include "row_value.cuh"

// As `taken`, of a row whose elements lie so many apart.
template <typename T>
__device__ __forceinline__ float taken_apart(const T* row, float index, int cols, int apart) {
  const int column = column_of(index);
  return column >= 0 && column < cols ? row_value(row + static_cast<long long>(column) * apart) : 0.0f;
}

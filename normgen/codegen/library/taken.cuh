#pragma once  // taken

#include "column_of.cuh"
#include "row_value.cuh"

// The element of a row in the column that `index` names; 0 where it names none.
template <typename T>
__device__ __forceinline__ float taken(const T* row, float index, int cols) {
  const int column = column_of(index);
  return column >= 0 && column < cols ? row_value(row + column) : 0.0f;
}

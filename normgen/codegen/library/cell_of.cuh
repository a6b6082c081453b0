#pragma once  // cell_of

// The cell of a column in a row of sums: the columns of a vector lie kVectors cells apart, those behind the last whole
// vector, and all of vectors of one column, in their own cells.
template <int kVector, int kVectors>
__device__ __forceinline__ int cell_of(int column) {
  return column < kVector * kVectors ? column % kVector * kVectors + column / kVector : column;
}

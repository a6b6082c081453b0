#pragma once  // rolled_column

// The column `by` columns to the right of `column`, around the end of a row of `cols`. `by` may be negative.
__device__ __forceinline__ int rolled_column(int column, int by, int cols) {
  const int right = by % cols < 0 ? by % cols + cols : by % cols;
  return column < cols - right ? column + right : column - (cols - right);
}

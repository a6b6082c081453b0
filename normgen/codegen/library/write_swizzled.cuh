#pragma once  // place_in_tile, write_swizzled

#include "row_value.cuh"

// Where a row's values begin in a tile of 128 rows, whose four groups are 512 bytes side by side.
__device__ __forceinline__ int place_in_tile(int row) { return row % 32 * 16 + row % 128 / 32 * 4; }

// The scale of one of a row's groups: a byte of a tile of 128 rows and four groups, tiles of a row side by side.
// The last group also writes zeros behind itself, and the last row those of the rows that its tile has behind it.
template <typename T>
__device__ __forceinline__ void write_swizzled(T* start, int row, int rows, int group, int groups, float value) {
  T* four = start + group / 4 * 512;
  const int end = group == groups - 1 ? 4 : group % 4 + 1;
  write_row_value(four + group % 4, value);
  for (int at = group % 4 + 1; at < end; ++at) four[at] = T{};
  if (row == rows - 1) {
    for (int behind = rows; behind % 128 != 0; ++behind) {
      T* padding = four - place_in_tile(row) + place_in_tile(behind);
      for (int at = group % 4; at < end; ++at) padding[at] = T{};
    }
  }
}

#pragma once  // write_packed

#include "row_value.cuh"

// The scale of one of a row's groups: a byte of a word of four groups' ones. Words of a row lie `pitch` bytes apart.
// The last group also fills its word up, with bytes of 0.
template <typename T>
__device__ __forceinline__ void write_packed(T* row, long long pitch, int group, int groups, float value) {
  T* word = row + group / 4 * pitch;
  write_row_value(word + group % 4, value);
  if (group == groups - 1) {
    for (int rest = group % 4 + 1; rest < 4; ++rest) word[rest] = T{};
  }
}

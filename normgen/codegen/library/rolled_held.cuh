#pragma once  // rolled_held

#include "read_rolled.cuh"

// As read_rolled, of a row whose vectors wait in registers: step `step` of this thread has the one at `column`. The
// thread that owns both halves of what is rolled by a half reads nothing again, nor do neighbours within a vector.
template <int kStride, int kBy, int kCols, typename T, int N, int kSteps>
__device__ __forceinline__ Vec<T, N> rolled_held(const Vec<T, N> (&held)[kSteps], int step, const T* row, int column) {
  constexpr int kRight = kBy % kCols < 0 ? kBy % kCols + kCols : kBy % kCols;
  if constexpr (kCols % kStride == 0 && kRight % kStride == 0) {
    return held[(step + kRight / kStride) % kSteps];
  } else if constexpr (kCols % N == 0 && kRight < N) {
    return joined(held[step], read<N>(row + (column + N < kCols ? column + N : 0)), kRight);
  } else if constexpr (kCols % N == 0 && kCols - kRight < N) {
    return joined(read<N>(row + (column > 0 ? column : kCols) - N), held[step], N - (kCols - kRight));
  } else {
    return read_rolled<N, 1, true, true>(row, column, kBy, kCols);
  }
}

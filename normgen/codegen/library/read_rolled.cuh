#pragma once  // joined, read_rolled

#include "rolled_column.cuh"
#include "vec.cuh"

// The elements from `offset` on of one vector, then those of the next; `offset` is a constant.
template <typename T, int N>
__device__ __forceinline__ Vec<T, N> joined(const Vec<T, N>& low, const Vec<T, N>& high, int offset) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  Vec<T, N> vec = {};
  #pragma unroll
  for (int i = 0; i < N; ++i) {
    const int from = i + offset < N ? i + offset : i + offset - N;
    const Vec<T, N>& part = i + offset < N ? low : high;
    if (kSize < 4) {
      const unsigned bits = part.bits[from * kSize / 4] >> from * kSize % 4 * 8 & ((1u << kSize % 4 * 8) - 1);
      vec.bits[i * kSize / 4] |= bits << i * kSize % 4 * 8;
    }
    #pragma unroll
    for (int word = 0; word < kSize / 4; ++word) vec.bits[i * kSize / 4 + word] = part.bits[from * kSize / 4 + word];
  }
  return vec;
}

// Elements of the columns [column + by, column + by + N), around the end of a row of `cols`; G columns share one.
// kAligned: N divides `column`, and rows start at whole vectors. kKnown: `by` and `cols` are constants.
template <int N, int G, bool kAligned, bool kKnown, typename T>
__device__ __forceinline__ Vec<T, N> read_rolled(const T* row, int column, int by, int cols) {
  const int first = rolled_column(column, by, cols);
  if constexpr (N == 1) {
    return read<1>(row + first / G);
  } else {
    constexpr int kSize = static_cast<int>(sizeof(T));
    const int offset = by % N < 0 ? by % N + N : by % N;
    const bool is_whole = kAligned && G == 1 && cols % N == 0;
    if (is_whole && offset == 0) return read<N>(row + first);
    if (is_whole && kKnown) {
      const int low = first - offset;
      return joined(read<N>(row + low), read<N>(row + (low + N < cols ? low + N : 0)), offset);
    }
    Vec<T, N> vec = {};
    #pragma unroll
    for (int i = 0; i < N; ++i) {
      const int at = first + i < cols ? first + i : (first + i) % cols;
      const Vec<T, 1> value = read<1>(row + at / G);
      if (kSize < 4) vec.bits[i * kSize / 4] |= value.bits[0] << i * kSize % 4 * 8;
      #pragma unroll
      for (int word = 0; word < kSize / 4; ++word) vec.bits[i * kSize / 4 + word] = value.bits[word];
    }
    return vec;
  }
}

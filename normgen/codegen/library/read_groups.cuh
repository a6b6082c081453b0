#pragma once  // read_groups

#include "vec.cuh"

// A vector of columns [column, column + N) of `groups`, each of whose values stands for G neighbouring columns.
// kAligned: N divides `column`, so that a vector whose N divides G lies in one group.
template <int G, int N, bool kAligned, typename T>
__device__ __forceinline__ Vec<T, N> read_groups(const T* groups, int column) {
  constexpr bool kOneGroup = N == 1 || (kAligned && G % N == 0);
  constexpr int kSize = static_cast<int>(sizeof(T));
  const T* group = groups + column / G;
  int left = kAligned && N % G == 0 ? G : G - column % G;  // columns up to the next group
  Vec<T, 1> value = read<1>(group);
  Vec<T, N> vec = {};
  #pragma unroll
  for (int i = 0; i < N; ++i) {
    if (!kOneGroup && left == 0) {
      value = read<1>(++group);
      left = G;
    }
    --left;
    if (kSize < 4) vec.bits[i * kSize / 4] |= value.bits[0] << i * kSize % 4 * 8;
    #pragma unroll
    for (int word = 0; word < kSize / 4; ++word) vec.bits[i * kSize / 4 + word] = value.bits[word];
  }
  return vec;
}

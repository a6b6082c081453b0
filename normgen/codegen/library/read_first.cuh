#pragma once  // read_first

#include "settled.cuh"
#include "vec.cuh"

// Reads what this thread overwrites later.
template <int N, typename Hint = Default, typename T>
__device__ __forceinline__ Vec<T, N> read_first(const T* elements) {
  Vec<T, N> vec = read<N, Hint>(elements);
  #pragma unroll
  for (int i = 0; i < Vec<T, N>::kRegisters; ++i) settled(vec.bits[i]);
  return vec;
}

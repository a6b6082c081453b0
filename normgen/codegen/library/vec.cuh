#pragma once  // Vec, read, write, element, pack

#include "default.cuh"

// N elements as they are stored, in 32-bit registers; moved by the widest words that fit, at most 16 bytes each.
template <typename T, int N>
struct Vec {
  static constexpr int kBytes = N * static_cast<int>(sizeof(T));
  static constexpr int kWordBytes = kBytes < 16 ? kBytes : 16;
  static constexpr int kRegisters = kBytes < 4 ? 1 : kBytes / 4;
  unsigned bits[kRegisters];
};

template <int N, typename Hint = Default, typename T>
__device__ __forceinline__ Vec<T, N> read(const T* elements) {
  constexpr int kBytes = Vec<T, N>::kWordBytes;
  Vec<T, N> vec;
  #pragma unroll
  for (int i = 0; i < Vec<T, N>::kBytes; i += kBytes) {
    Hint::template load<kBytes>(reinterpret_cast<const unsigned char*>(elements) + i, vec.bits + i / 4);
  }
  return vec;
}

template <typename Hint = Default, typename T, int N>
__device__ __forceinline__ void write(T* elements, const Vec<T, N>& vec) {
  constexpr int kBytes = Vec<T, N>::kWordBytes;
  #pragma unroll
  for (int i = 0; i < Vec<T, N>::kBytes; i += kBytes) {
    Hint::template store<kBytes>(reinterpret_cast<unsigned char*>(elements) + i, vec.bits + i / 4);
  }
}

template <int N>
__device__ __forceinline__ float element(const Vec<float, N>& vec, int i) { return __uint_as_float(vec.bits[i]); }

template <int N>
__device__ __forceinline__ void pack(Vec<float, N>& vec, const float (&values)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) vec.bits[i] = __float_as_uint(values[i]);
}

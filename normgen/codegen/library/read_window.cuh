#pragma once  // read_window

#include "vec.cuh"

// Elements [first, first + N) of an array of `count`, whatever the alignment of their address: the aligned words
// around them, moved into place. `inside`: those words are known to lie within the array.
template <int N, typename T>
__device__ __forceinline__ Vec<T, N> read_window(const T* elements, int first, int count, bool inside) {
  if constexpr (N == 1) {
    return read<1>(elements + first);
  } else {
    constexpr int kSize = static_cast<int>(sizeof(T));
    constexpr int kWord = (N * kSize < 16 ? N * kSize : 16) / kSize;  // elements of a word
    constexpr int kRegisters = kWord * kSize / 4;
    constexpr int kWords = N / kWord + 1;
    const int shift = static_cast<int>(reinterpret_cast<unsigned long long>(elements + first) / kSize % kWord);
    Vec<T, N> vec = {};
    if (!inside && (first < shift || first - shift + kWords * kWord > count)) {
      #pragma unroll
      for (int i = 0; i < N; ++i) {
        const unsigned bits = *reinterpret_cast<const Word<kSize>*>(elements + first + i);
        if (kSize == 4) vec.bits[i] = bits;
        else vec.bits[i * kSize / 4] |= bits << i * kSize % 4 * 8;
      }
      return vec;
    }
    unsigned bits[kWords * kRegisters];
    #pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const Vec<T, kWord> part = read<kWord>(elements + first - shift + word * kWord);
      #pragma unroll
      for (int i = 0; i < kRegisters; ++i) bits[word * kRegisters + i] = part.bits[i];
    }
    #pragma unroll
    for (int step = kRegisters / 2; step > 0; step /= 2) {
      const bool moves = (shift * kSize / 4 & step) != 0;  // a select: branches would put the bits in local memory
      #pragma unroll
      for (int i = 0; i + step < kWords * kRegisters; ++i) bits[i] = moves ? bits[i + step] : bits[i];
    }
    #pragma unroll
    for (int i = 0; i < Vec<T, N>::kRegisters; ++i) {
      vec.bits[i] = __funnelshift_r(bits[i], bits[i + 1], shift * kSize % 4 * 8);
    }
    return vec;
  }
}

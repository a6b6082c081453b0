#pragma once  // boolean, element, pack

#include "vec.cuh"

struct boolean {
  unsigned char bits;
};

// Four elements share a register.
template <int N>
__device__ __forceinline__ float element(const Vec<boolean, N>& vec, int i) {
  return static_cast<float>((vec.bits[i / 4] >> (8 * (i % 4)) & 0xffu) != 0);
}

template <int N>
__device__ __forceinline__ void pack(Vec<boolean, N>& vec, const float (&values)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) {
    const unsigned bits = values[i] > 0.5f ? 1 : 0;
    vec.bits[i / 4] = i % 4 == 0 ? bits : vec.bits[i / 4] | bits << (8 * (i % 4));
  }
}

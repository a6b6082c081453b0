#pragma once  // tfloat32, float_to_tfloat32, element, pack

#include "vec.cuh"

// A float with 10 bits of fraction, in the bits of a float.
struct tfloat32 {
  unsigned bits;
};

// To nearest, ties to even.
__device__ __forceinline__ unsigned float_to_tfloat32(float value) {
  const unsigned bits = __float_as_uint(value);
  return value == value ? (bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u : 0x7fc00000u;
}

template <int N>
__device__ __forceinline__ float element(const Vec<tfloat32, N>& vec, int i) { return __uint_as_float(vec.bits[i]); }

template <int N>
__device__ __forceinline__ void pack(Vec<tfloat32, N>& vec, const float (&values)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) vec.bits[i] = float_to_tfloat32(values[i]);
}

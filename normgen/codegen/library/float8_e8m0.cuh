#pragma once  // float8_e8m0, e8m0_to_float, float_to_e8m0, element, pack

#include "vec.cuh"

struct float8_e8m0 {
  unsigned char bits;
};

// 2 to the power bits - 127; the last one is NaN.
__device__ __forceinline__ float e8m0_to_float(unsigned bits) {
  return __uint_as_float(bits == 0u ? 0x00400000u : bits == 0xffu ? 0x7fc00000u : bits << 23);
}

// The power of two that is not below the value, from 2^-127 to 2^127; NaN for what is negative.
__device__ __forceinline__ unsigned float_to_e8m0(float value) {
  const unsigned bits = __float_as_uint(value) & 0x7fffffffu;
  const unsigned exponent = bits >> 23;
  const unsigned up = exponent + ((bits & 0x7fffffu) > (exponent == 0u ? 0x400000u : 0u));
  return value >= 0.0f ? (up < 254u ? up : 254u) : 0xffu;
}

// Four elements share a register.
template <int N>
__device__ __forceinline__ float element(const Vec<float8_e8m0, N>& vec, int i) {
  return e8m0_to_float(vec.bits[i / 4] >> (8 * (i % 4)) & 0xffu);
}

template <int N>
__device__ __forceinline__ void pack(Vec<float8_e8m0, N>& vec, const float (&values)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) {
    const unsigned bits = float_to_e8m0(values[i]);
    vec.bits[i / 4] = i % 4 == 0 ? bits : vec.bits[i / 4] | bits << (8 * (i % 4));
  }
}

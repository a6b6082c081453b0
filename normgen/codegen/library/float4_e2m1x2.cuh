#pragma once  // float4_e2m1x2, float_to_e2m1, element, e2m1_to_float, pack

#include "vec.cuh"

// Two elements, the first in the low four bits: sign, two bits of exponent, one of mantissa.
struct float4_e2m1x2 {
  unsigned char bits;
};

// Eight elements share a register.
template <int N>
struct Vec<float4_e2m1x2, N> {
  static constexpr int kBytes = (N + 1) / 2;
  static constexpr int kWordBytes = kBytes < 16 ? kBytes : 16;
  static constexpr int kRegisters = kBytes < 4 ? 1 : kBytes / 4;
  unsigned bits[kRegisters];
};

// To nearest, ties to even; what is too large becomes 6, and so does NaN.
__device__ __forceinline__ unsigned float_to_e2m1(float value) {
  const float at_most = fminf(value, 6.0f);  // 6 for NaN
  const float size = fminf(fabsf(at_most), 6.0f);
  // 2^22 times the value's power of two, or times 1: the sum is rounded to halves of that power, as an element is.
  const unsigned binade = __float_as_uint(fmaxf(size, 1.0f)) & 0x7f800000u;
  const unsigned halves = __float_as_uint(size + __uint_as_float(binade + (22u << 23)));
  // Of the powers 1, 2 and 4 codes are the halves, and 2 and 4 more: twice the exponent, 149 of the power 1.
  const unsigned code = halves + (halves >> 22) - 2u * 149u;
  return (code & 7u) | (__float_as_uint(at_most) >> 28 & 8u);
}

__device__ __forceinline__ float e2m1_to_float(unsigned bits) {
  const unsigned code = bits & 7u;
  const float size = code < 2u ? 0.5f * static_cast<float>(code) : __uint_as_float((code << 22) + (126u << 23));
  return __uint_as_float(__float_as_uint(size) | (bits & 8u) << 28);
}

template <int N>
__device__ __forceinline__ float element(const Vec<float4_e2m1x2, N>& vec, int i) {
  return e2m1_to_float(vec.bits[i / 8] >> (4 * (i % 8)));
}

template <int N>
__device__ __forceinline__ void pack(Vec<float4_e2m1x2, N>& vec, const float (&values)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) {
    const unsigned bits = float_to_e2m1(values[i]);
    vec.bits[i / 8] = i % 8 == 0 ? bits : vec.bits[i / 8] | bits << (4 * (i % 8));
  }
}

#pragma once

#include "vec.cuh"
#include "whole_numbers.cuh"

struct uint8 {
  unsigned char bits;
};

// Four elements share a register.
template <int N>
__device__ __forceinline__ float element(const Vec<uint8, N>& vec, int i) {
  return static_cast<float>(vec.bits[i / 4] >> (8 * (i % 4)) & 0xffu);
}

template <int N>
__device__ __forceinline__ void pack(Vec<uint8, N>& vec, const float (&values)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) {
    const unsigned bits = float_to_uint8(values[i]);
    vec.bits[i / 4] = i % 4 == 0 ? bits : vec.bits[i / 4] | bits << (8 * (i % 4));
  }
}

#pragma once

#include "vec.cuh"
#include "whole_numbers.cuh"

struct int8 {
  signed char bits;
};

// Four elements share a register.
template <int N>
__device__ __forceinline__ float element(const Vec<int8, N>& vec, int i) {
  return static_cast<float>(static_cast<signed char>(vec.bits[i / 4] >> (8 * (i % 4))));
}

template <int N>
__device__ __forceinline__ void pack(Vec<int8, N>& vec, const float (&values)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) {
    const unsigned bits = static_cast<unsigned>(float_to_int8(values[i])) & 0xffu;
    vec.bits[i / 4] = i % 4 == 0 ? bits : vec.bits[i / 4] | bits << (8 * (i % 4));
  }
}

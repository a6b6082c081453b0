#pragma once  // int8, element, pack

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
  if (N == 1) {
    vec.bits[0] = floats_to_int8x2(values[0], 0.0f, 0);
  } else {
    #pragma unroll
    for (int i = N - 2; i >= 0; i -= 2) {
      const unsigned next = i % 4 == 0 && i + 2 < N ? vec.bits[i / 4] : 0;
      vec.bits[i / 4] = floats_to_int8x2(values[i], values[i + 1], next);
    }
  }
}

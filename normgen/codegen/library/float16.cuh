#pragma once  // element, pack

#include "float16_bits.cuh"
#include "vec.cuh"

// Two elements share a register.
template <int N>
__device__ __forceinline__ float element(const Vec<float16, N>& vec, int i) {
  if (i % 2 == 1) return half_to_float(static_cast<unsigned short>(vec.bits[i / 2] >> 16));
  return half_to_float(static_cast<unsigned short>(vec.bits[i / 2]));
}

template <int N>
__device__ __forceinline__ void pack(Vec<float16, N>& vec, const float (&values)[N]) {
  if (N == 1) {
    vec.bits[0] = float_to_half(values[0]);
  } else {
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) vec.bits[i / 2] = floats_to_half2(values[i], values[i + 1]);
  }
}

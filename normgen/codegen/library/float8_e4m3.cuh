#pragma once  // element, pack

#include "float8_bits.cuh"
#include "vec.cuh"

// Four elements share a register.
template <int N>
__device__ __forceinline__ float element(const Vec<float8_e4m3, N>& vec, int i) {
  return e4m3_to_float(vec.bits[i / 4] >> (8 * (i % 4)) & 0xffu);
}

template <int N>
__device__ __forceinline__ void pack(Vec<float8_e4m3, N>& vec, const float (&values)[N]) {
  if (N == 1) {
    vec.bits[0] = floats_to_e4m3x2(values[0], 0.0f);
  } else {
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
      const unsigned two = floats_to_e4m3x2(values[i], values[i + 1]);
      vec.bits[i / 4] = i % 4 == 0 ? two : vec.bits[i / 4] | two << 16;
    }
  }
}

#pragma once  // element, pack

#include "bfloat16_bits.cuh"
#include "vec.cuh"

// Two elements share a register.
template <int N>
__device__ __forceinline__ float element(const Vec<bfloat16, N>& vec, int i) {
  if (i % 2 == 1) return __uint_as_float(vec.bits[i / 2] & 0xffff0000u);
  return __uint_as_float(vec.bits[i / 2] << 16);
}

template <int N>
__device__ __forceinline__ void pack(Vec<bfloat16, N>& vec, const float (&values)[N]) {
  if (N == 1) {
    vec.bits[0] = float_to_bfloat16(values[0]);
  } else {
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) vec.bits[i / 2] = floats_to_bfloat162(values[i], values[i + 1]);
  }
}

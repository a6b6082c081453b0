#pragma once

// The nearest whole number, the even one of two; what is too large becomes the largest one, NaN becomes 0.
__device__ __forceinline__ int float_to_int8(float value) {
  int bits;
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ unsigned float_to_uint8(float value) {
  unsigned bits;
  asm("cvt.rni.sat.u8.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ int float_to_int32(float value) {
  int bits;
  asm("cvt.rni.sat.s32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ long long float_to_int64(float value) {
  long long bits;
  asm("cvt.rni.sat.s64.f32 %0, %1;" : "=l"(bits) : "f"(value));
  return value != value ? 0 : bits;
}

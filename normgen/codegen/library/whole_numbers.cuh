#pragma once  // floats_to_int8x2, floats_to_uint8x2, float_to_int32, float_to_int64

// The nearest whole number, the even one of two; what is too large becomes the largest one, NaN becomes 0.
// Of two values, in the two low bytes; those of `next` are moved above them. One instruction (F2IP) does it all.
__device__ __forceinline__ unsigned floats_to_int8x2(float low, float high, unsigned next) {
  int first, second;
  unsigned bits;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(first) : "f"(low));
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(second) : "f"(high));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(bits) : "r"(second), "r"(first), "r"(next));
  return bits;
}

__device__ __forceinline__ unsigned floats_to_uint8x2(float low, float high, unsigned next) {
  int first, second;
  unsigned bits;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(first) : "f"(low));
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(second) : "f"(high));
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(bits) : "r"(second), "r"(first), "r"(next));
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

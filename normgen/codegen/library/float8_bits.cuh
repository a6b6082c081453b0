#pragma once  // float8_e4m3, float8_e5m2, floats_to_e4m3x2, floats_to_e5m2x2, e4m3_to_float, e5m2_to_float

struct float8_e4m3 {
  unsigned char bits;
};

struct float8_e5m2 {
  unsigned char bits;
};

// To nearest, ties to even; what is too large becomes the largest number, NaN stays NaN.
__device__ __forceinline__ unsigned floats_to_e4m3x2(float low, float high) {
  unsigned short bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ unsigned floats_to_e5m2x2(float low, float high) {
  unsigned short bits;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ float e4m3_to_float(unsigned bits) {
  unsigned halves;
  float value;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(bits)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(halves)));
  return value;
}

__device__ __forceinline__ float e5m2_to_float(unsigned bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits << 8)));  // half of an f16
  return value;
}

#pragma once  // float16, half_to_float, float_to_half, floats_to_half2

struct float16 {
  unsigned short bits;
};

__device__ __forceinline__ float half_to_float(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ unsigned short float_to_half(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ unsigned floats_to_half2(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  return float_to_half(low) | (static_cast<unsigned>(float_to_half(high)) << 16);
#endif
}

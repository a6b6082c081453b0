#pragma once  // bfloat16, float_to_bfloat16, floats_to_bfloat162

struct bfloat16 {
  unsigned short bits;
};

__device__ __forceinline__ unsigned short float_to_bfloat16(float value) {
#if __CUDA_ARCH__ >= 800
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fff;                               // any NaN
  return static_cast<unsigned short>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
#endif
}

__device__ __forceinline__ unsigned floats_to_bfloat162(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  return float_to_bfloat16(low) | (static_cast<unsigned>(float_to_bfloat16(high)) << 16);
#endif
}

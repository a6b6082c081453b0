#pragma once  // maximum, minimum

// IEEE 754-2019 maximum and minimum: unlike fmaxf and fminf they return NaN when either operand is NaN.
__device__ __forceinline__ float maximum(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float value;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
#else
  return a > b || a != a ? a : b;
#endif
}

__device__ __forceinline__ float minimum(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float value;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
#else
  return a < b || a != a ? a : b;
#endif
}

#pragma once  // reciprocal_approximate

// 1 / x by the hardware's reciprocal: off by 1 unit in the last place at most; 0 where that is subnormal,
// an infinity where x is.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float value;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}

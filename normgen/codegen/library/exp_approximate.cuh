#pragma once  // exp_approximate

// e^x by the hardware's power of two: off by 2 + 1.2 |x| units in the last place at most; 0 where that is subnormal.
__device__ __forceinline__ float exp_approximate(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x * 1.442695041f));
  return value;
}

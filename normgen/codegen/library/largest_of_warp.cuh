#pragma once  // largest_of_warp

// The largest of a warp's values, none of which is negative: the bits of such floats have their order, NaN above all.
__device__ __forceinline__ float largest_of_warp(float value) {
  unsigned largest;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(__float_as_uint(value)));
  return __uint_as_float(largest);
}

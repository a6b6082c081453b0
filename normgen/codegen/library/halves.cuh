#pragma once  // low_halves, high_halves

// Of two registers the low halves, or the high ones, in one.
__device__ __forceinline__ unsigned low_halves(unsigned first, unsigned second) {
  return (first & 0xffffu) | second << 16;
}
__device__ __forceinline__ unsigned high_halves(unsigned first, unsigned second) {
  return first >> 16 | (second & 0xffff0000u);
}

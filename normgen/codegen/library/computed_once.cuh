#pragma once  // computed_once

// Hides from the compiler how the value was found: it would find it again in every look rather than keep it.
__device__ __forceinline__ float computed_once(float value) {
  asm volatile("" : "+f"(value));
  return value;
}

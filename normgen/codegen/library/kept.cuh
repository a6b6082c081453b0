#pragma once  // kept

// The value, which the compiler then keeps in a register, where it would compute it anew in every round of a loop.
__device__ __forceinline__ int kept(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

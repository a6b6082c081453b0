#pragma once  // await_turn

// Waits until the counter's top bit is no longer `before`. What its writers did before is seen behind fence_device().
__device__ __forceinline__ void await_turn(const unsigned* counter, unsigned before) {
  unsigned now;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  } while (now >> 31 == before);
}

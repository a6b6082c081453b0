#pragma once  // leave_registers, take_registers

// From here on a thread has so many registers: it leaves others to the threads of its block that take them. All of four
// warps do so.
template <int kCount>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(kCount));
}

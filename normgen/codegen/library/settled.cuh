#pragma once  // settled

// The bits have been read: no store that follows moves ahead of it, and what read them not behind it. To the compiler a
// load with a cache hint is a function of the address alone.
__device__ __forceinline__ void settled(unsigned& bits) { asm volatile("" : "+r"(bits) :: "memory"); }

#pragma once  // NoAllocate

// Leaves no line in L1.
struct NoAllocate {
  template <int kBytes>
  static __device__ __forceinline__ void load(const void* address, unsigned* bits) {
    if constexpr (kBytes == 16) {
      asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3]) : "l"(address));
    } else if constexpr (kBytes == 8) {
      asm("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
          : "=r"(bits[0]), "=r"(bits[1]) : "l"(address));
    } else if constexpr (kBytes == 4) {
      asm("ld.global.L1::no_allocate.u32 %0, [%1];"
          : "=r"(bits[0]) : "l"(address));
    } else {
      unsigned short half;
      if constexpr (kBytes == 2) asm("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(half) : "l"(address));
      else asm("ld.global.L1::no_allocate.u8 %0, [%1];" : "=h"(half) : "l"(address));
      bits[0] = half;
    }
  }
};

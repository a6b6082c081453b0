#pragma once  // load_by_policy

// A load whose lines L2 keeps by `policy` (ld.global.L2::cache_hint: sm_80).
template <int kBytes>
__device__ __forceinline__ void load_by_policy(const void* address, unsigned* bits, unsigned long long policy) {
  if constexpr (kBytes == 16) {
    asm("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3]) : "l"(address), "l"(policy));
  } else if constexpr (kBytes == 8) {
    asm("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
        : "=r"(bits[0]), "=r"(bits[1]) : "l"(address), "l"(policy));
  } else if constexpr (kBytes == 4) {
    asm("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(bits[0]) : "l"(address), "l"(policy));
  } else {
    unsigned short half;
    if constexpr (kBytes == 2) {
      asm("ld.global.L2::cache_hint.u16 %0, [%1], %2;" : "=h"(half) : "l"(address), "l"(policy));
    } else {
      asm("ld.global.L2::cache_hint.u8 %0, [%1], %2;" : "=h"(half) : "l"(address), "l"(policy));
    }
    bits[0] = half;
  }
}

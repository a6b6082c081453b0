#pragma once  // EvictFirst

#include "load_by_policy.cuh"

// First to leave L2 (createpolicy: sm_80).
struct EvictFirst {
  static __device__ __forceinline__ unsigned long long l2_policy() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
  }
  template <int kBytes>
  static __device__ __forceinline__ void load(const void* address, unsigned* bits) {
    load_by_policy<kBytes>(address, bits, l2_policy());
  }
  template <int kBytes>
  static __device__ __forceinline__ void store(void* address, const unsigned* bits) {
    const unsigned long long policy = l2_policy();
    if constexpr (kBytes == 16) {
      asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%2, %3, %4, %5}, %1;"
                   :: "l"(address), "l"(policy), "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3]) : "memory");
    } else if constexpr (kBytes == 8) {
      asm volatile("st.global.L2::cache_hint.v2.u32 [%0], {%2, %3}, %1;"
                   :: "l"(address), "l"(policy), "r"(bits[0]), "r"(bits[1]) : "memory");
    } else if constexpr (kBytes == 4) {
      asm volatile("st.global.L2::cache_hint.u32 [%0], %2, %1;"
                   :: "l"(address), "l"(policy), "r"(bits[0]) : "memory");
    } else if constexpr (kBytes == 2) {
      asm volatile("st.global.L2::cache_hint.u16 [%0], %2, %1;"
                   :: "l"(address), "l"(policy), "h"(static_cast<unsigned short>(bits[0])) : "memory");
    } else {
      asm volatile("st.global.L2::cache_hint.u8 [%0], %2, %1;"
                   :: "l"(address), "l"(policy), "h"(static_cast<unsigned short>(bits[0])) : "memory");
    }
  }
};

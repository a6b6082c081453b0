#pragma once  // EvictLast

#include "load_by_policy.cuh"

// Last to leave L2 (createpolicy: sm_80).
struct EvictLast {
  static __device__ __forceinline__ unsigned long long l2_policy() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
  }
  template <int kBytes>
  static __device__ __forceinline__ void load(const void* address, unsigned* bits) {
    load_by_policy<kBytes>(address, bits, l2_policy());
  }
};

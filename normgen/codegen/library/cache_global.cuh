#pragma once  // CacheGlobal

#include "words.cuh"

// Cached in L2 only (ld.global.cg, st.global.cg).
struct CacheGlobal {
  template <int kBytes>
  static __device__ __forceinline__ void load(const void* address, unsigned* bits) {
    split(__ldcg(static_cast<const Word<kBytes>*>(address)), bits);
  }
  template <int kBytes>
  static __device__ __forceinline__ void store(void* address, const unsigned* bits) {
    __stcg(static_cast<Word<kBytes>*>(address), join<kBytes>(bits));
  }
};

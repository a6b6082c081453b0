#pragma once  // Streaming

#include "words.cuh"

// Used once: evict first (ld.global.cs, st.global.cs).
struct Streaming {
  template <int kBytes>
  static __device__ __forceinline__ void load(const void* address, unsigned* bits) {
    split(__ldcs(static_cast<const Word<kBytes>*>(address)), bits);
  }
  template <int kBytes>
  static __device__ __forceinline__ void store(void* address, const unsigned* bits) {
    __stcs(static_cast<Word<kBytes>*>(address), join<kBytes>(bits));
  }
};

#pragma once  // Default

#include "words.cuh"

// Cached at all levels, written back as usual.
struct Default {
  template <int kBytes>
  static __device__ __forceinline__ void load(const void* address, unsigned* bits) {
    split(*static_cast<const Word<kBytes>*>(address), bits);
  }
  template <int kBytes>
  static __device__ __forceinline__ void store(void* address, const unsigned* bits) {
    *static_cast<Word<kBytes>*>(address) = join<kBytes>(bits);
  }
};

#pragma once  // copy_async

#include "cp_async.cuh"
#include "vec.cuh"

// Copies N elements to a slot of shared memory, past the registers.
template <int N, typename T>
__device__ __forceinline__ void copy_async(T* slot, const T* elements) {
  constexpr int kBytes = Vec<T, N>::kWordBytes;
  #pragma unroll
  for (int i = 0; i < Vec<T, N>::kBytes; i += kBytes) {
    cp_async<kBytes>(reinterpret_cast<unsigned char*>(slot) + i, reinterpret_cast<const unsigned char*>(elements) + i);
  }
}

#pragma once  // copy_async_if

#include "cp_async_if.cuh"
#include "vec.cuh"

// Copies N elements to a slot of shared memory, past the registers; zeros where they are not inside.
template <int N, typename T>
__device__ __forceinline__ void copy_async_if(bool inside, T* slot, const T* elements) {
  constexpr int kBytes = Vec<T, N>::kWordBytes;
  #pragma unroll
  for (int i = 0; i < Vec<T, N>::kBytes; i += kBytes) {
    cp_async_if<kBytes>(inside, reinterpret_cast<unsigned char*>(slot) + i,
        reinterpret_cast<const unsigned char*>(elements) + i);
  }
}

#pragma once  // InOrder, Input

// How a kernel and its neighbours in the stream overlap: not at all.
// wait              before the first access to what the kernels in front write, or still read
// wait_for_partner  in a call's second kernel, before the first access to what the first one writes
// at_...            here the kernel behind this one may start: it takes the place of blocks as they end
// Pointer           to what is only read: while kernels in front may still write it, it is not `__restrict__`, by which
//                   the compiler would read it through the non-coherent cache and move loads over a wait
struct InOrder {
  template <typename T> using Pointer = const T* __restrict__;
  static __device__ __forceinline__ void wait() {}
  static __device__ __forceinline__ void wait_for_partner() {}
  static __device__ __forceinline__ void at_start() {}
  static __device__ __forceinline__ void at_loads() {}
  static __device__ __forceinline__ void at_end() {}
};

template <class Config, typename T> using Input = typename Config::Chain::template Pointer<T>;

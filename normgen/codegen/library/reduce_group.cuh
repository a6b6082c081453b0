#pragma once  // Sum, Maximum, Minimum, reduce_group

#include "extremum.cuh"

// How two values of a group become one.
struct Sum {
  static __device__ __forceinline__ float combine(float a, float b) { return a + b; }
};
struct Maximum {
  static __device__ __forceinline__ float combine(float a, float b) { return maximum(a, b); }
};
struct Minimum {
  static __device__ __forceinline__ float combine(float a, float b) { return minimum(a, b); }
};

// All kLanes neighbouring lanes of a warp that own a group, a power of two, end with the value of the whole group.
// Unless kTogether, other lanes of the warp may own no vector in this step: then each group shuffles by itself, for a
// dozen instructions that find out which lanes are there.
template <int kLanes, typename Operation, bool kTogether>
__device__ __forceinline__ float reduce_group(float value) {
  const unsigned first = threadIdx.x % 32 / kLanes * kLanes;
  const unsigned lanes = kTogether || kLanes == 32 ? 0xffffffffu : ((1u << kLanes % 32) - 1) << first;
  #pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = Operation::combine(value, __shfl_xor_sync(lanes, value, offset));
  }
  return value;
}

#pragma once  // combine_lanes

#include "reduce_group.cuh"

// kLanes lanes of a warp, a power of two, of which neighbours have numbers kApart apart, end with the value of all. All
// lanes of the warp take part.
template <int kLanes, int kApart, typename Operation>
__device__ __forceinline__ float combine_lanes(float value) {
  #pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    value = Operation::combine(value, __shfl_xor_sync(0xffffffffu, value, lanes * kApart));
  }
  return value;
}

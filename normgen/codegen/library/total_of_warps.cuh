#pragma once  // total_of_warps

#include "sum_in_pairs.cuh"

// The sum of what kWarps warps have left in column `cell`. In one chain of additions nearly every partial sum would be
// as large as the total and round as much: of 16 equally large terms, twice the squared error of four short chains.
template <int kWarps, int kPitch>
__device__ __forceinline__ float total_of_warps(const float (*warp_sums)[kPitch], int cell) {
  float sums[4] = {};  // one addition does not wait for another; a tree of 16 terms is not unrolled by NVRTC 13.0
  #pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sums[warp % 4] += warp_sums[warp][cell];
  return sum_in_pairs(sums);
}

#pragma once  // take_group

#include "cell_of.cuh"
#include "sum_in_pairs.cuh"

// The sum of the kGroup columns from `first` on, whose cells are left 0. The lanes of a warp add them together.
template <int kGroup, int kVector = 1, int kVectors = 0>
__device__ __forceinline__ float take_group(float* sums, int first) {
  float parts[4] = {};  // loads of a lane that travel at once
  for (int next = threadIdx.x % 32; next < kGroup; next += 4 * 32) {
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = next + i * 32;
      if (column < kGroup) parts[i] += __ldcg(sums + cell_of<kVector, kVectors>(first + column));
    }
  }
  for (int column = threadIdx.x % 32; column < kGroup; column += 32) {
    sums[cell_of<kVector, kVectors>(first + column)] = 0.0f;
  }
  float total = sum_in_pairs(parts);
  #pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
  return total;
}

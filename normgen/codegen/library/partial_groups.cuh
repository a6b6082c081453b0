#pragma once  // add_partial_group

#include "cell_of.cuh"
#include "sum_in_pairs.cuh"

// Partial rows as in `add_partial_rows`: kThreads threads add the kGroup columns from `first` on of all rows, always in
// the same order: every warp's sum in column 0 of shared memory.
template <int kThreads, int kCells, int kTensors, int kPitch, int kGroup, int kVector, int kVectors>
__device__ __forceinline__ void add_partial_group(
    const float* partials, int partial_rows, int tensor, int first, float (&warp_sums)[kThreads / 32][kCells]) {
  constexpr int kInFlight = 12;  // loads of a thread that travel at once: the sums are bound by latency
  float sums[4] = {};            // short chains of additions: few roundings, and none waits for another
  for (int next = threadIdx.x; next < partial_rows * kGroup; next += kInFlight * kThreads) {
    float values[kInFlight];
    #pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int row = (next + i * kThreads) / kGroup;
      const int cell = cell_of<kVector, kVectors>(first + (next + i * kThreads) % kGroup);
      const float* partial_row = partials + (static_cast<long long>(row) * kTensors + tensor) * kPitch;
      values[i] = row < partial_rows ? partial_row[cell] : 0.0f;
    }
    #pragma unroll
    for (int i = 0; i < kInFlight; ++i) sums[i % 4] += values[i];
  }
  float sum = sum_in_pairs(sums);
  #pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32][0] = sum;
  __syncthreads();
}

#pragma once  // add_partial_rows

#include "sum_in_pairs.cuh"
#include "total_of_warps.cuh"

// Partial rows of column sums: each block has left one row of kTensors times kPitch float32 cells. kThreads threads add
// kCells neighbouring cells of all rows, from `cell` on, always in the same order: every warp's sums in shared memory.
template <int kThreads, int kCells, int kTensors, int kPitch>
__device__ __forceinline__ void add_partial_rows(
    const float* partials, int partial_rows, int tensor, int cell, float (&warp_sums)[kThreads / 32][kCells]) {
  constexpr int kLanes = kThreads / kCells;  // threads that share a cell
  constexpr int kInFlight = 12;              // loads of a thread that travel at once: the sums are bound by latency
  float sums[4] = {};                        // short chains of additions: few roundings, and none waits for another
  for (int first = threadIdx.x / kCells; first < partial_rows; first += kInFlight * kLanes) {
    float values[kInFlight];
    #pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int row = first + i * kLanes;
      const float* partial_row = partials + (static_cast<long long>(row) * kTensors + tensor) * kPitch;
      values[i] = row < partial_rows ? partial_row[cell] : 0.0f;
    }
    #pragma unroll
    for (int i = 0; i < kInFlight; ++i) sums[i % 4] += values[i];
  }
  float sum = sum_in_pairs(sums);
  #pragma unroll
  for (int offset = kCells; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 < kCells) warp_sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
}

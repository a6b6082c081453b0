#pragma once

// Partial rows of column sums: each block has left one row of kTensors times kPitch float32 cells. kThreads threads add
// kCells neighbouring cells of all rows, from `cell` on, always in the same order: every warp's sums in shared memory.
template <int kThreads, int kCells, int kTensors, int kPitch>
__device__ __forceinline__ void add_partial_rows(
    const float* partials, int partial_rows, int tensor, int cell, float (&warp_sums)[kThreads / 32][kCells]) {
  constexpr int kLanes = kThreads / kCells;  // threads that share a cell
  constexpr int kInFlight = 12;              // loads of a thread that travel at once: the sums are bound by latency
  float sum = 0.0f;
  for (int first = threadIdx.x / kCells; first < partial_rows; first += kInFlight * kLanes) {
    float values[kInFlight];
    #pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int row = first + i * kLanes;
      const float* partial_row = partials + (static_cast<long long>(row) * kTensors + tensor) * kPitch;
      values[i] = row < partial_rows ? partial_row[cell] : 0.0f;
    }
    #pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum += values[i];
  }
  #pragma unroll
  for (int offset = kCells; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 < kCells) warp_sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
}

// The sum of a column of the warps' sums.
template <int kWarps, int kCells>
__device__ __forceinline__ float total_of_warps(const float (&warp_sums)[kWarps][kCells], int cell) {
  float total = 0.0f;
  #pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += warp_sums[warp][cell];
  return total;
}

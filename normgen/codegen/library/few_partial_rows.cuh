#pragma once  // total_of_partial_rows

#include "sum_in_pairs.cuh"

// Few partial rows of kTensors times kPitch float32 cells each: a thread adds one cell of all of them, in their order.
template <int kTensors, int kPitch>
__device__ __forceinline__ float total_of_partial_rows(const float* partials, int partial_rows, int tensor, int cell) {
  constexpr int kInFlight = 12;  // loads that travel at once
  float sums[4] = {};            // short chains of additions: few roundings, and none waits for another
  for (int first = 0; first < partial_rows; first += kInFlight) {
    float values[kInFlight];
    #pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const float* partial_row = partials + (static_cast<long long>(first + i) * kTensors + tensor) * kPitch;
      values[i] = first + i < partial_rows ? partial_row[cell] : 0.0f;
    }
    #pragma unroll
    for (int i = 0; i < kInFlight; ++i) sums[i % 4] += values[i];
  }
  return sum_in_pairs(sums);
}

#pragma once  // sum_in_pairs

// The sum of N terms, N a power of two, as a tree: log2(N) roundings on the way of each term.
template <int N>
__device__ __forceinline__ float sum_in_pairs(const float (&terms)[N]) {
  float sums[N];
  #pragma unroll
  for (int k = 0; k < N; ++k) sums[k] = terms[k];
  #pragma unroll
  for (int n = N / 2; n > 0; n /= 2) {
    #pragma unroll
    for (int k = 0; k < n; ++k) sums[k] += sums[k + n];
  }
  return sums[0];
}

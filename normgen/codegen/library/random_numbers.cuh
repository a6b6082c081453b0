#pragma once  // philox, random_numbers

#include "int64.cuh"

// Philox4x32-10 (Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3): the four words of a counter become
// random ones, in their place.
__device__ __forceinline__ void philox(unsigned* words, unsigned key, unsigned other_key) {
  #pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long first = static_cast<unsigned long long>(words[0]) * 0xd2511f53u;
    const unsigned long long second = static_cast<unsigned long long>(words[2]) * 0xcd9e8d57u;
    words[0] = static_cast<unsigned>(second >> 32) ^ words[1] ^ key;
    words[1] = static_cast<unsigned>(second);
    words[2] = static_cast<unsigned>(first >> 32) ^ words[3] ^ other_key;
    words[3] = static_cast<unsigned>(first);
    key += 0x9e3779b9u;
    other_key += 0xbb67ae85u;
  }
}

// The random numbers of N columns from `column` on: multiples of 2^-24 in [0, 1). One depends on the seed, its row,
// its column and the number of the draw alone: it is word column % 4 of what (row, 0, column / 4, draw) becomes.
// kShifted: `column` need not be a multiple of N.
template <int N, bool kShifted = false>
__device__ __forceinline__ Vec<float, N> random_numbers(
    const Vec<int64, 1>& seed, int row, int column, unsigned draw) {
  constexpr int kCounters = kShifted ? (N + 6) / 4 : (N + 3) / 4;
  unsigned words[4 * kCounters];
  #pragma unroll
  for (int i = 0; i < 4 * kCounters; i += 4) {
    words[i] = static_cast<unsigned>(row);
    words[i + 1] = 0;
    words[i + 2] = static_cast<unsigned>(column / 4 + i / 4);
    words[i + 3] = draw;
    philox(words + i, seed.bits[0], seed.bits[1]);
  }
  if constexpr (kShifted || N < 4) {
    #pragma unroll
    for (int step = 2; step > 0; step /= 2) {
      const bool moves = (column & step) != 0;  // a select: an index would put the words in local memory
      #pragma unroll
      for (int i = 0; i + step < 4 * kCounters; ++i) words[i] = moves ? words[i + step] : words[i];
    }
  }
  float values[N];
  #pragma unroll
  for (int i = 0; i < N; ++i) values[i] = static_cast<float>(words[i] >> 8) * (1.0f / 16777216.0f);
  Vec<float, N> vec;
  pack(vec, values);
  return vec;
}

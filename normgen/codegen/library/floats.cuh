#pragma once  // read_pieces, write_floats

#include "vec.cuh"

// A thread's kCount floats of a line of shared memory: kPiece lie side by side, the next ones kApart further on.
template <int kPiece, int kApart, int kCount>
__device__ __forceinline__ void read_pieces(const float* line, float (&values)[kCount]) {
  #pragma unroll
  for (int i = 0; i < kCount; i += kPiece) {
    const Vec<float, kPiece> piece = read<kPiece>(line + i / kPiece * kApart);
    #pragma unroll
    for (int j = 0; j < kPiece; ++j) values[i + j] = element(piece, j);
  }
}

// Writes floats side by side.
template <int N>
__device__ __forceinline__ void write_floats(float* floats, const float (&values)[N]) {
  Vec<float, N> vec;
  pack(vec, values);
  write(floats, vec);
}

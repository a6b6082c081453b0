#pragma once  // whole_piece

// Of each 8 of 32 columns a lane has two sums side by side of one line, and two of another. The four lanes that share a
// line exchange theirs, so that each has a whole piece of 8 of both lines.
__device__ __forceinline__ void whole_piece(const float* sums, float* upper, float* lower) {
  const bool is_odd = threadIdx.x % 2 == 1, is_high = threadIdx.x / 2 % 2 == 1;
  #pragma unroll
  for (int i = 0; i < 4; ++i) {  // two elements of both lines
    float part[4];
    #pragma unroll
    for (int piece = 0; piece < 4; ++piece) part[piece] = sums[4 * piece + i];
    #pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      const float other = __shfl_xor_sync(0xffffffffu, is_high ? part[piece] : part[piece + 2], 2);
      part[piece] = is_high ? other : part[piece];
      part[piece + 2] = is_high ? part[piece + 2] : other;
    }
    #pragma unroll
    for (int piece = 0; piece < 4; piece += 2) {
      const float other = __shfl_xor_sync(0xffffffffu, is_odd ? part[piece] : part[piece + 1], 1);
      part[piece] = is_odd ? other : part[piece];
      part[piece + 1] = is_odd ? part[piece + 1] : other;
    }
    float* const line = i < 2 ? upper : lower;
    #pragma unroll
    for (int from = 0; from < 4; ++from) line[2 * from + i % 2] = part[from];
  }
}

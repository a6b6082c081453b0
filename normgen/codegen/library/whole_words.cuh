#pragma once  // whole_words

// Of each 8 of 32 columns a lane has two elements of 16 bits, in a word. The four lanes that share a line exchange
// theirs, so that each has the four words of 8 columns side by side.
__device__ __forceinline__ void whole_words(unsigned* parts) {
  const bool is_odd = threadIdx.x % 2 == 1, is_high = threadIdx.x / 2 % 2 == 1;
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, is_high ? parts[i] : parts[i + 2], 2);
    parts[i] = is_high ? other : parts[i];
    parts[i + 2] = is_high ? parts[i + 2] : other;
  }
  #pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, is_odd ? parts[i] : parts[i + 1], 1);
    parts[i] = is_odd ? other : parts[i];
    parts[i + 1] = is_odd ? parts[i + 1] : other;
  }
}

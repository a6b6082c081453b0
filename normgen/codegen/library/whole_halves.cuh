#pragma once  // whole_halves

// Of each 8 of 32 columns a lane has two elements of 8 bits, half a word: two words. The four lanes that share a line
// exchange theirs, so that each has the two words of 8 columns side by side.
__device__ __forceinline__ void whole_halves(unsigned* parts) {
  const bool is_odd = threadIdx.x % 2 == 1, is_high = threadIdx.x / 2 % 2 == 1;
  const unsigned two = __shfl_xor_sync(0xffffffffu, is_high ? parts[0] : parts[1], 2);
  const unsigned low = is_high ? two : parts[0], high = is_high ? parts[1] : two;  // of columns side by side, by lanes
  const unsigned even_halves = low & 0xffffu | high << 16, odd_halves = low >> 16 | high & 0xffff0000u;
  const unsigned other = __shfl_xor_sync(0xffffffffu, is_odd ? even_halves : odd_halves, 1);
  const unsigned own = is_odd ? odd_halves : even_halves;
  const unsigned first = is_odd ? other : own, second = is_odd ? own : other;
  parts[0] = first & 0xffffu | second << 16;
  parts[1] = first >> 16 | second & 0xffff0000u;
}

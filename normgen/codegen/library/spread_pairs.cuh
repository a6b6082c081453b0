#pragma once  // spread_pairs

// The place of k where lanes read 8 k of a line side by side: of each 32, pair p of lane c is pair c of matrix p.
__device__ __forceinline__ int spread_pairs(int k) { return k / 32 * 32 + k / 2 % 4 * 8 + k / 8 % 4 * 2 + k % 2; }

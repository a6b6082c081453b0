#pragma once  // LastRowsFirst

// The first block takes the last tile: of an input larger than L2 it still holds the last rows.
struct LastRowsFirst {
  static __device__ __forceinline__ unsigned tile(unsigned block, int last) { return last - block; }
};

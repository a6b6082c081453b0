#pragma once  // FirstRowsFirst

// Blocks of one tile of rows take the tiles in order. `last` is the number of the last tile.
struct FirstRowsFirst {
  static __device__ __forceinline__ unsigned tile(unsigned block, int) { return block; }
};

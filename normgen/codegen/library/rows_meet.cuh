#pragma once  // rows_meet

#include "named_barrier.cuh"

// A barrier for the kWarps warps of row number `block_row` of a block. Only wide rows have one each: a barrier whose
// number the hardware learns at run time is a slow one, and narrow rows share that of the block.
template <int kWarps>
__device__ __forceinline__ void rows_meet(int block_row) {
  if constexpr (kWarps >= 8) named_barrier(1 + block_row, kWarps * 32);
  else __syncthreads();
}

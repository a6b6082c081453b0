#pragma once

#include "lanes.cuh"
#include "reduce_tile.cuh"

// As Lanes, by reduce_tile.
template <int kThreadsPerRow, int kRowsPerBlock>
struct LaneTiles : Lanes<kThreadsPerRow, kRowsPerBlock> {
  template <typename State, typename Nothing>
  static __device__ __forceinline__ State reduce(State s, Nothing&) {
    return reduce_tile<kThreadsPerRow>(s);
  }
};

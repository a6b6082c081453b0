#pragma once

#include "reduce_lanes.cuh"

// As reduce_lanes, by the shuffles of CUDA's cooperative groups, which name only the lanes of their tile. The headers
// of cooperative groups are not included: they would take more than half of the time that a header compiles.
template <int kLanes, typename State>
__device__ __forceinline__ State reduce_tile(const State& s) {
  constexpr unsigned kTile = 0xffffffffu >> (32 - kLanes);
  return reduce_lanes<kLanes>(s, kTile << threadIdx.x % 32 / kLanes * kLanes);
}

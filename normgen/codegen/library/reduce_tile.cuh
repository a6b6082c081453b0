#pragma once

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

struct Combine {
  template <typename State>
  __device__ __forceinline__ State operator()(const State& a, const State& b) const { return State::combine(a, b); }
};

// As reduce_lanes, by CUDA's cooperative groups.
template <int kLanes, typename State>
__device__ __forceinline__ State reduce_tile(const State& s) {
  const auto tile = cooperative_groups::tiled_partition<kLanes>(cooperative_groups::this_thread_block());
  return cooperative_groups::reduce(tile, s, Combine());
}

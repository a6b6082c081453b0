#pragma once  // state_of_warp

#include "reduce_lanes.cuh"

// The combined state of a warp: by the state's own way, where it has a shorter one than shuffles.
template <typename State>
__device__ __forceinline__ auto state_of_warp(const State& s, int) -> decltype(State::of_warp(s)) {
  return State::of_warp(s);
}
template <typename State>
__device__ __forceinline__ State state_of_warp(const State& s, long) { return reduce_lanes<32>(s); }

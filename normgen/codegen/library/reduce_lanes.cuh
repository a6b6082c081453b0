#pragma once

// All kLanes neighbouring lanes, a power of two, end with the combined state; the lanes of `mask` take part. A state is
// a struct of floats that knows how two combine, and how to get that of the lane whose number differs by `offset`.
template <int kLanes, typename State>
__device__ __forceinline__ State reduce_lanes(State s, unsigned mask = 0xffffffffu) {
  #pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) s = State::combine(s, State::shuffle_xor(s, offset, mask));
  return s;
}

#pragma once  // WholeWarp, reduce_lanes

// The lanes that a shuffle names: all of the warp.
struct WholeWarp {
  template <int kLanes>
  static __device__ __forceinline__ unsigned lanes() { return 0xffffffffu; }
};

// All kLanes neighbouring lanes, a power of two, end with the combined state. A state is a struct of floats that knows
// how two combine, and how to get that of the lane whose number differs by `offset`.
template <int kLanes, class Named = WholeWarp, typename State>
__device__ __forceinline__ State reduce_lanes(State s) {
  const unsigned mask = Named::template lanes<kLanes>();
  #pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) s = State::combine(s, State::shuffle_xor(s, offset, mask));
  return s;
}

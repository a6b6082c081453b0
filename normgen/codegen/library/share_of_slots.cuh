#pragma once  // lanes_for, share_of_slots

// The largest power of two up to n, and up to a warp: how many lanes combine n states.
__host__ __device__ constexpr int lanes_for(int n) { return n < 2 ? 1 : n >= 32 ? 32 : 2 * lanes_for(n / 2); }

// What this lane combines of kStates states: lanes_for(kStates) lanes take turns at them.
template <int kStates, typename State>
__device__ __forceinline__ State share_of_slots(const State* slots) {
  constexpr int kLanes = lanes_for(kStates);
  const int own = threadIdx.x % kLanes;
  State total = slots[own];
  #pragma unroll
  for (int i = kLanes; i < kStates; i += kLanes) {
    if (kStates % kLanes == 0 || own + i < kStates) total = State::combine(total, slots[own + i]);
  }
  return total;
}

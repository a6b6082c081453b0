#pragma once  // alignas, combine_in_pairs

// Shared memory for the states of kStates warps, read four floats at once.
template <int kStates, typename State>
struct alignas(16) StatesOfWarps {
  State states[kStates];
};

// States kFirst to kFirst + kCount - 1 combined in pairs: as few steps one behind the other as a tree has levels.
template <int kFirst, int kCount, typename State>
__device__ __forceinline__ State combine_in_pairs(const State* states) {
  if constexpr (kCount == 1) {
    return states[kFirst];
  } else {
    constexpr int kHalf = kCount / 2;
    return State::combine(combine_in_pairs<kFirst, kHalf>(states),
                          combine_in_pairs<kFirst + kHalf, kCount - kHalf>(states));
  }
}

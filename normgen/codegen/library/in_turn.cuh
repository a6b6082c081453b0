#pragma once  // InTurn

// Parameters are read in their turn.
struct InTurn {
  template <typename T>
  static __device__ __forceinline__ void to_l2(const T*, int) {}
};

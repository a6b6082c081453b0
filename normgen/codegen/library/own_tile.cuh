#pragma once  // OwnTile

// As the shuffles of CUDA's cooperative groups, which name only the lanes of their tile. The headers of cooperative
// groups are not included: they would take more than half of the time that a header compiles.
struct OwnTile {
  template <int kLanes>
  static __device__ __forceinline__ unsigned lanes() {
    return (0xffffffffu >> (32 - kLanes)) << threadIdx.x % 32 / kLanes * kLanes;
  }
};

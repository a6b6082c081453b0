#pragma once  // EarlyAtEnd

#include "dependent_launch.cuh"
#include "early.cuh"

// As Early; the next kernel may start as the blocks of this one end.
struct EarlyAtEnd : Early {
  static __device__ __forceinline__ void at_end() { griddepcontrol_launch_dependents(); }
};

#pragma once  // EarlyAtStart

#include "dependent_launch.cuh"
#include "early.cuh"

// As Early; the next kernel may start at once, and waits where it must.
struct EarlyAtStart : Early {
  static __device__ __forceinline__ void at_start() { griddepcontrol_launch_dependents(); }
};

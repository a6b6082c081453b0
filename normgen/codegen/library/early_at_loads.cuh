#pragma once  // EarlyAtLoads

#include "dependent_launch.cuh"
#include "early.cuh"

// As Early; the next kernel may start once this one has asked for its rows.
struct EarlyAtLoads : Early {
  static __device__ __forceinline__ void at_loads() { griddepcontrol_launch_dependents(); }
};

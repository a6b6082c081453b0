#pragma once  // Early

#include "dependent_launch.cuh"
#include "in_order.cuh"

// Starts while the kernel in front still runs (programmatic dependent launch).
struct Early : InOrder {
  template <typename T> using Pointer = const T*;
  static __device__ __forceinline__ void wait() { griddepcontrol_wait(); }
  static __device__ __forceinline__ void wait_for_partner() { griddepcontrol_wait(); }
};

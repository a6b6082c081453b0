#pragma once  // EarlyPartner

#include "dependent_launch.cuh"
#include "in_order.cuh"

// Only a call's second kernel starts early, behind its first one.
struct EarlyPartner : InOrder {
  static __device__ __forceinline__ void wait_for_partner() { griddepcontrol_wait(); }
  static __device__ __forceinline__ void at_start() { griddepcontrol_launch_dependents(); }
};

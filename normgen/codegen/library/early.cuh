#pragma once

#include "dependent_launch.cuh"
#include "in_order.cuh"

// Starts while the kernel in front still runs (programmatic dependent launch).
struct Early : InOrder {
  template <typename T> using Pointer = const T*;
  static __device__ __forceinline__ void wait() { dependency_wait(); }
  static __device__ __forceinline__ void wait_for_partner() { dependency_wait(); }
};

// As Early; the next kernel may start at once, and waits where it must.
struct EarlyAtStart : Early {
  static __device__ __forceinline__ void at_start() { dependency_trigger(); }
};

// As Early; the next kernel may start once this one has asked for its rows.
struct EarlyAtLoads : Early {
  static __device__ __forceinline__ void at_loads() { dependency_trigger(); }
};

// As Early; the next kernel may start as the blocks of this one end.
struct EarlyAtEnd : Early {
  static __device__ __forceinline__ void at_end() { dependency_trigger(); }
};

// Only a call's second kernel starts early, behind its first one.
struct EarlyPartner : InOrder {
  static __device__ __forceinline__ void wait_for_partner() { dependency_wait(); }
  static __device__ __forceinline__ void at_start() { dependency_trigger(); }
};

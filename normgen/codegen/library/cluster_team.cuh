#pragma once

#include "reduce_cluster.cuh"
#include "threads.cuh"

// The blocks of a cluster are a team. A block may write to another only once that one has started.
template <int kBlocks, int kBlockThreads>
struct ClusterTeam : Threads<kBlocks * kBlockThreads, 1> {
  static __device__ __forceinline__ int lane() { return static_cast<int>(cluster_rank() * kBlockThreads + threadIdx.x); }
  static __device__ __forceinline__ unsigned tile() { return blockIdx.x / kBlocks; }
  static __device__ __forceinline__ void announce() { cluster_arrive(); }
  static __device__ __forceinline__ void meet() { cluster_wait(); }
  template <typename State> using Slots = State[kBlocks * kBlockThreads / 32];
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, State (&slots)[kBlocks * kBlockThreads / 32]) {
    return reduce_cluster<kBlockThreads / 32, kBlocks>(s, slots);
  }
};

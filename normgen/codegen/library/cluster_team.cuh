#pragma once  // ClusterTeam

#include "cluster_store.cuh"
#include "reduce_lanes.cuh"
#include "share_of_slots.cuh"
#include "threads.cuh"

// The blocks of a cluster are a team. Every warp leaves its state in each block, then every warp combines all of them:
// one barrier. A block may write to another only once that one has started.
template <int kBlocks, int kBlockThreads>
struct ClusterTeam : Threads<kBlocks * kBlockThreads, 1> {
  enum : int { kWarps = kBlockThreads / 32, kStates = kWarps * kBlocks };
  static __device__ __forceinline__ int row_thread() { return cluster_rank() * kBlockThreads + threadIdx.x; }
  static __device__ __forceinline__ unsigned tile() { return blockIdx.x / kBlocks; }
  static __device__ __forceinline__ void announce() { cluster_arrive_relaxed(); }
  static __device__ __forceinline__ void meet() { cluster_wait(); }
  template <typename State> using Slots = State[kStates];
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, State (&slots)[kStates]) {
    s = reduce_lanes<32>(s);
    const unsigned lane = threadIdx.x % 32;
    if (lane < kBlocks) cluster_store(slots + cluster_rank() * kWarps + threadIdx.x / 32, lane, s);
    cluster_arrive();
    cluster_wait();
    return reduce_lanes<lanes_for(kStates)>(share_of_slots<kStates>(slots));
  }
};

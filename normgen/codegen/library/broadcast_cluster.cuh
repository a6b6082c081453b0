#pragma once

#include "cluster_store.cuh"
#include "combine_in_pairs.cuh"
#include "threads.cuh"

// The blocks of a cluster are a team, as a ClusterTeam, and every thread reads the states of all warps.
template <int kBlocks, int kBlockThreads>
struct BroadcastCluster : Threads<kBlocks * kBlockThreads, 1> {
  enum : int { kWarps = kBlockThreads / 32, kStates = kWarps * kBlocks };
  static __device__ __forceinline__ int lane() { return cluster_rank() * kBlockThreads + threadIdx.x; }
  static __device__ __forceinline__ unsigned tile() { return blockIdx.x / kBlocks; }
  static __device__ __forceinline__ void announce() { cluster_arrive_relaxed(); }
  static __device__ __forceinline__ void meet() { cluster_wait(); }
  template <typename State> using Slots = StatesOfWarps<kStates, State>;
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, StatesOfWarps<kStates, State>& slots) {
    s = State::of_warp(s);
    const unsigned lane = threadIdx.x % 32;
    if (lane < kBlocks) cluster_store(slots.states + cluster_rank() * kWarps + threadIdx.x / 32, lane, s);
    cluster_arrive();
    cluster_wait();
    return combine_in_pairs<0, kStates>(slots.states);
  }
};

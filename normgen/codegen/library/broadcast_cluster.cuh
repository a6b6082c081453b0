#pragma once  // BroadcastCluster

#include "cluster_team.cuh"
#include "combine_in_pairs.cuh"
#include "state_of_warp.cuh"

// A ClusterTeam in which every thread reads the states of all warps.
template <int kBlocks, int kBlockThreads>
struct BroadcastCluster : ClusterTeam<kBlocks, kBlockThreads> {
  enum : int { kWarps = kBlockThreads / 32, kStates = kWarps * kBlocks };
  template <typename State> using Slots = StatesOfWarps<kStates, State>;
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, StatesOfWarps<kStates, State>& slots) {
    s = state_of_warp(s, 0);
    const unsigned lane = threadIdx.x % 32;
    if (lane < kBlocks) cluster_store(slots.states + cluster_rank() * kWarps + threadIdx.x / 32, lane, s);
    cluster_arrive();
    cluster_wait();
    return combine_in_pairs<0, kStates>(slots.states);
  }
};

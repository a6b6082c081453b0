#pragma once

#include "cluster_store.cuh"
#include "reduce_lanes.cuh"
#include "share_of_slots.cuh"

// Every warp leaves its state in each block of the cluster, then every warp combines all of them: one barrier.
template <int kWarps, int kCluster, typename State>
__device__ __forceinline__ State reduce_cluster(State s, State* slots) {
  constexpr int kStates = kWarps * kCluster;
  s = reduce_lanes<32>(s);
  const unsigned lane = threadIdx.x % 32;
  if (lane < kCluster) cluster_store(slots + cluster_rank() * kWarps + threadIdx.x / 32, lane, s);
  cluster_arrive();
  cluster_wait();
  return reduce_lanes<lanes_for(kStates)>(share_of_slots<kStates>(slots));
}

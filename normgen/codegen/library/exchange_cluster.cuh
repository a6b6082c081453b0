#pragma once  // exchange_cluster

#include "cluster_send.cuh"
#include "reduce_lanes.cuh"
#include "share_of_slots.cuh"

// Every warp sends its state to each block of the cluster, then every warp combines all of the states. A cluster
// barrier would wait for all loads and stores of the rows in flight; an mbarrier waits for the states only. Exchanges
// take turns at two sets of slots: number n uses set n % 2, and waits for phase n / 2 % 2 of that set's mbarrier. A set
// is written again after the states of the next exchange have come, and every warp sends those after it has read it.
template <int kWarps, int kCluster, typename State>
__device__ __forceinline__ State exchange_cluster(
    State s, State (&slots)[2][kWarps * kCluster], unsigned long long (&full)[2], unsigned exchange) {
  constexpr int kStates = kWarps * kCluster;
  State* set = slots[exchange % 2];
  unsigned long long* arrived = &full[exchange % 2];
  s = reduce_lanes<32>(s);
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x == 0) mbarrier_expect_bytes(arrived, kStates * static_cast<unsigned>(sizeof(State)));
  __syncwarp();  // all lanes have read the slots of the last exchange
  if (lane < kCluster) cluster_send(set + cluster_rank() * kWarps + threadIdx.x / 32, lane, s, arrived);
  mbarrier_wait(arrived, exchange / 2 % 2);
  return reduce_lanes<lanes_for(kStates)>(share_of_slots<kStates>(set));
}

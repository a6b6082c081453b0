#pragma once  // cluster_rank, cluster_arrive, cluster_arrive_relaxed, cluster_wait, cluster_address

// This block's rank in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of a cluster arrive, then wait. What a thread wrote before it arrived, the others see after
// they have waited.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// As above, where a thread has written nothing that others wait for: no fence.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where block `rank` of the cluster has the shared variable `own`.
template <typename T>
__device__ __forceinline__ unsigned cluster_address(const T* own, unsigned rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank));
  return remote;
}

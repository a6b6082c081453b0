#pragma once  // cluster_send, mbarrier_cluster_fence

#include "cluster.cuh"
#include "mbarrier.cuh"

// Writes `value` to where block `rank` of the cluster has the shared variable `own`. Nobody waits for the store: its
// bytes count at that block's `mbarrier` as they arrive.
template <typename T>
__device__ __forceinline__ void cluster_send(T* own, unsigned rank, const T& value, unsigned long long* mbarrier) {
  const unsigned remote = cluster_address(own, rank), counted = cluster_address(mbarrier, rank);
  const float* words = reinterpret_cast<const float*>(&value);
  #pragma unroll
  for (unsigned i = 0; i < sizeof(T) / 4; ++i) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 :: "r"(remote + 4 * i), "r"(__float_as_uint(words[i])), "r"(counted) : "memory");
  }
}

// The other blocks of the cluster see the mbarriers that this thread has set up, behind the next cluster barrier.
__device__ __forceinline__ void mbarrier_cluster_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

#pragma once  // cluster_store

#include "cluster.cuh"

// Writes `value` to where block `rank` of the cluster has the shared variable `own`.
template <typename T>
__device__ __forceinline__ void cluster_store(T* own, unsigned rank, const T& value) {
  const unsigned remote = cluster_address(own, rank);
  const float* words = reinterpret_cast<const float*>(&value);
  #pragma unroll
  for (unsigned i = 0; i < sizeof(T) / 4; ++i) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(remote + 4 * i), "f"(words[i]) : "memory");
  }
}

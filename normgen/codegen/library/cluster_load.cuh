#pragma once  // cluster_load

#include "cluster.cuh"

// Reads what block `rank` of the cluster has in the shared variable `own`: a float, or four of them at a time.
__device__ __forceinline__ void cluster_load(float (&value)[1], const float* own, unsigned rank) {
  const unsigned remote = cluster_address(own, rank);
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value[0]) : "r"(remote) : "memory");
}
__device__ __forceinline__ void cluster_load(float (&values)[4], const float* own, unsigned rank) {
  const unsigned remote = cluster_address(own, rank);
  asm volatile("ld.shared::cluster.v4.f32 { %0, %1, %2, %3 }, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3]) : "r"(remote) : "memory");
}

#pragma once  // cluster_store_four

#include "cluster.cuh"

// Writes four numbers to where block `rank` of the cluster has the shared variables `own`, 16 bytes at once.
__device__ __forceinline__ void cluster_store_four(float* own, unsigned rank, float a, float b, float c, float d) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "r"(cluster_address(own, rank)), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

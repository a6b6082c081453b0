#pragma once  // add_over_cluster

#include "cluster_load.cuh"

// The blocks of a cluster have left kTensors rows of kPitch sums each in `column_sums`, where the others read them.
// Each block adds a stretch of the kCols columns, block by block in the order of ranks and kWidth columns a thread at a
// time, and writes it to the cluster's partial row.
template <int kThreads, int kCluster, int kTensors, int kCols, int kPitch, int kWidth>
__device__ __forceinline__ void add_over_cluster(const float* column_sums, float* partial_row) {
  constexpr int kStretch = (kCols + kWidth * kCluster - 1) / (kWidth * kCluster) * kWidth;  // columns of a block
  cluster_arrive();
  cluster_wait();
  const int stretch = static_cast<int>(cluster_rank()) * kStretch;
  const int end = min(stretch + kStretch, kCols);
  for (int cell = stretch + kWidth * threadIdx.x; cell < end; cell += kWidth * kThreads) {
    float parts[kTensors][kCluster][kWidth];
    #pragma unroll
    for (int rank = 0; rank < kCluster; ++rank) {
      #pragma unroll
      for (int tensor = 0; tensor < kTensors; ++tensor) {
        cluster_load(parts[tensor][rank], column_sums + tensor * kPitch + cell, rank);
      }
    }
    #pragma unroll
    for (int rank = 1; rank < kCluster; ++rank) {
      #pragma unroll
      for (int tensor = 0; tensor < kTensors; ++tensor) {
        #pragma unroll
        for (int i = 0; i < kWidth; ++i) parts[tensor][0][i] += parts[tensor][rank][i];
      }
    }
    #pragma unroll
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      const float(&total)[kWidth] = parts[tensor][0];
      float* to = partial_row + tensor * kPitch + cell;
      if constexpr (kWidth == 4) {
        *reinterpret_cast<float4*>(to) = make_float4(total[0], total[1], total[2], total[3]);
      } else {
        *to = total[0];
      }
    }
  }
  cluster_arrive();
  cluster_wait();  // a block may end only once nobody reads its sums any more
}

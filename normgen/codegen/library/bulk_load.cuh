#pragma once  // mbarrier_fence, bulk_load

#include "mbarrier.cuh"

// The copy engine sees the barriers that this thread has set up.
__device__ __forceinline__ void mbarrier_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// One copy of a multiple of 16 bytes by the copy engine; its bytes count at the barrier as they arrive.
__device__ __forceinline__ void bulk_load(
    void* shared, const void* global, unsigned bytes, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(global), "r"(bytes),
                  "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))) : "memory");
}

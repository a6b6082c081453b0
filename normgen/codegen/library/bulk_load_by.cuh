#pragma once  // bulk_load_by

#include "bulk_load.cuh"

// As bulk_load, by the L2 policy of `Hint`.
template <typename Hint>
__device__ __forceinline__ void bulk_load_by(
    void* shared, const void* global, unsigned bytes, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1], %2, [%3], %4;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(global), "r"(bytes),
                  "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "l"(Hint::l2_policy()) : "memory");
}

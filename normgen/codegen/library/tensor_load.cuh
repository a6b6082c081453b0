#pragma once  // tensor_load

// The copy engine brings a box of a map's matrix that starts at that element of that line, and zeros for what lies
// beyond the matrix. Its bytes count at the barrier as they arrive.
__device__ __forceinline__ void tensor_load(
    void* shared, const void* map, int at, int line, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3}], [%4];"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(map), "r"(at), "r"(line),
                  "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))) : "memory");
}

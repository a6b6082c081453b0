#pragma once  // TensorMap, tensor_load

// What the copy engine is told of a matrix in memory, and of boxes of it: the driver encodes it.
struct TensorMap {
  alignas(64) unsigned long long words[16];
};

// The copy engine brings a box of a matrix that starts at that element of that line, and zeros for what lies beyond the
// matrix. Its bytes count at the barrier as they arrive.
__device__ __forceinline__ void tensor_load(
    void* shared, const TensorMap* map, int element, int line, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3}], [%4];"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(map), "r"(element), "r"(line),
                  "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))) : "memory");
}

#pragma once  // shared_fence, tensor_store, tensor_stores_read

// What the thread has written to shared memory stands before what the copy engine reads there.
__device__ __forceinline__ void shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The copy engine stores a box of a map's matrix that starts at that element of that line, but for what lies beyond the
// matrix.
__device__ __forceinline__ void tensor_store(const void* map, int at, int line, const void* shared) {
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               :: "l"(map), "r"(at), "r"(line), "r"(from) : "memory");
}

// Waits until all boxes that the thread has had stored are read: others may lie in their place.
__device__ __forceinline__ void tensor_stores_read() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

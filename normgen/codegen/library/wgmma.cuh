#pragma once  // wgmma_fence, wgmma_commit, wgmma_wait, wgmma_arrived, wgmma_lines

// What a thread has done to its sums stands before the products that it starts.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// The products that were started are a group.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the last kLeft groups have read their factors, and have put their sums there.
template <int kLeft>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(kLeft) : "memory");
}

// To the compiler products are in their sums once they are started. Behind the wait for them this tells it that they
// have come only now, so that it moves no use of them ahead of the wait.
template <int kTiles, int kSums>
__device__ __forceinline__ void wgmma_arrived(float (&sums)[kTiles][kSums]) {
  #pragma unroll
  for (int i = 0; i < kTiles * kSums; ++i) asm volatile("" : "+f"(sums[i / kSums][i % kSums]) :: "memory");
}

// Lines of 128 bytes below each other, whose pieces of 16 bytes change places by eights of lines, as tensor cores are
// told of them: where they start, that eight of them are 1024 bytes, and which swizzle.
__device__ __forceinline__ unsigned long long wgmma_lines(const void* first) {
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(first));
  return (from & 0x3ffffu) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#pragma once

// A team: the threads that share a row. They are neighbours in a block, which has kRowsPerBlock rows side by side.
template <int kThreadsPerRow, int kRowsPerBlock>
struct Threads {
  enum : int { kThreads = kThreadsPerRow, kRows = kRowsPerBlock };
  // This thread's number in its team, and that of its team's row in the block; which tile of rows is the block's.
  static __device__ __forceinline__ int lane() { return kRows == 1 ? threadIdx.x : threadIdx.x % kThreadsPerRow; }
  static __device__ __forceinline__ int slot() { return kRows == 1 ? 0 : threadIdx.x / kThreadsPerRow; }
  static __device__ __forceinline__ unsigned tile() { return blockIdx.x; }
  // The team's row in the tile of rows that starts at `first`; idle teams work on the last row.
  static __device__ __forceinline__ int row(int first, int rows) {
    return kRows == 1 ? first : min(first + slot(), rows - 1);
  }
  // Before their first exchange the blocks of a team say that they have started, and wait until all of them have.
  static __device__ __forceinline__ void announce() {}
  static __device__ __forceinline__ void meet() {}
  // Whether it holds for any row whose team takes part in an exchange.
  static __device__ __forceinline__ bool any(bool condition) { return condition; }
};

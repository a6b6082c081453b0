#pragma once  // Threads

// A team: the threads that share a row. They are neighbours in a block, which has kRowsPerBlock rows side by side.
template <int kThreadsPerRow, int kRowsPerBlock>
struct Threads {
  enum : int { kSize = kThreadsPerRow, kRows = kRowsPerBlock };
  // This thread's number in its team, and its team's in the block; which tile of rows is the block's.
  static __device__ __forceinline__ int row_thread() { return kRows == 1 ? threadIdx.x : threadIdx.x % kThreadsPerRow; }
  static __device__ __forceinline__ int block_row() { return kRows == 1 ? 0 : threadIdx.x / kThreadsPerRow; }
  static __device__ __forceinline__ unsigned tile() { return blockIdx.x; }
  // The team's row of the tile that starts at row `first`; idle teams take the last row.
  static __device__ __forceinline__ int row(int first, int rows) {
    return kRows == 1 ? first : min(first + block_row(), rows - 1);
  }
  // Blocks that are a team say that they have started, and wait for each other before they combine.
  static __device__ __forceinline__ void announce() {}
  static __device__ __forceinline__ void meet() {}
};

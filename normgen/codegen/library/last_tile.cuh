#pragma once  // finish_last_tiles

#include "ticket.cuh"
#include "total_of_warps.cuh"

// Partial rows of kRowSums float32 cells each: tile by tile of kTileSums cells, the last block to arrive adds all rows
// in a fixed order, hands each sum to `finish(cell, sum)`, and leaves the tickets ready for the next call. Blocks start
// at different tiles, so that several of them finish. `is_last` and `scratch`, four floats a thread, lie in shared
// memory.
template <int kThreads, int kTiles, int kTileSums, int kRowSums, int kTicketWords, typename Finish>
__device__ __forceinline__ void finish_last_tiles(
    unsigned* tickets, bool& is_last, const float* partials, int partial_rows, float* scratch, const Finish& finish) {
  constexpr int kInFlight = 8;  // loads of a thread that travel at once
  __threadfence();
  for (int visit = 0; visit < kTiles; ++visit) {
    const int tile = (blockIdx.x + visit) % kTiles;
    if (!takes_last_ticket(tickets + tile * kTicketWords, is_last)) continue;
    if (threadIdx.x == 0) tickets[tile * kTicketWords] = 0;
    for (int first = tile * kTileSums; first < min((tile + 1) * kTileSums, kRowSums); first += 128) {
      // Each warp adds every (kThreads / 32)-th partial row, a lane four cells of it ...
      const int own = first + threadIdx.x % 32 * 4;
      const int rows = own < kRowSums ? partial_rows : 0;
      float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int next = threadIdx.x / 32; next < rows; next += kInFlight * (kThreads / 32)) {
        float4 parts[kInFlight];
        #pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const int row = next + i * (kThreads / 32);
          const float* from = partials + static_cast<long long>(row) * kRowSums + own;
          parts[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if (row < rows) parts[i] = __ldcg(reinterpret_cast<const float4*>(from));
        }
        #pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          sums.x += parts[i].x;
          sums.y += parts[i].y;
          sums.z += parts[i].z;
          sums.w += parts[i].w;
        }
      }
      reinterpret_cast<float4*>(scratch)[threadIdx.x] = sums;
      __syncthreads();
      // ... and the warps' sums are added.
      for (int i = threadIdx.x; i < 128; i += kThreads) {
        const float total = total_of_warps<kThreads / 32>(reinterpret_cast<const float (*)[128]>(scratch), i);
        if (first + i < kRowSums) finish(first + i, total);
      }
      __syncthreads();
    }
  }
}

#pragma once  // Ahead

// Parameters are on their way from DRAM to L2 while the kernel waits for its rows. The first block asks for all `count`
// elements, whole units of 16 bytes: in one instruction (sm_90), or each thread for a line.
struct Ahead {
  template <typename T>
  static __device__ __forceinline__ void to_l2(const T* parameter, int count) {
    if (blockIdx.x > 0) return;
    const int bytes = count * static_cast<int>(sizeof(T));
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(parameter), "r"(bytes));
#else
    const char* start = reinterpret_cast<const char*>(parameter);
    for (int line = threadIdx.x * 128; line < bytes; line += blockDim.x * 128) {
      asm volatile("prefetch.global.L2 [%0];" :: "l"(start + line));
    }
#endif
  }
};

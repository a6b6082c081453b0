using Vector = VECTOR;

__device__ __forceinline__ float value(uint4 v) { return __uint_as_float((v.x ^ v.y ^ v.z ^ v.w) & 0x3fffffffu); }
__device__ __forceinline__ float value(uint2 v) { return __uint_as_float((v.x ^ v.y) & 0x3fffffffu); }
__device__ __forceinline__ float value(unsigned v) { return __uint_as_float(v & 0x3fffffffu); }
__device__ __forceinline__ float value(unsigned short v) { return __uint_as_float(v & 0x3fffffffu); }
__device__ __forceinline__ float value(unsigned char v) { return __uint_as_float(v & 0x3fffffffu); }

__device__ __forceinline__ float over_warp(float sum) {
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    return sum;
}

// CLUSTER block(s) a row: load it, reduce once, store. What is stored depends on the sum and on what was loaded.
extern "C" __global__ void __launch_bounds__(THREADS) reduction(PARAMS) {
    constexpr int kThreads = THREADS, kCluster = CLUSTER, kAll = kThreads * kCluster;
    const long long row = blockIdx.x / kCluster;
    const int rank = blockIdx.x % kCluster, thread = rank * kThreads + threadIdx.x;
    __shared__ float of_warps[32];
    __shared__ float of_blocks[kCluster];
    float sum = 0.0f;
LOADS
    sum = over_warp(sum);
    if (kThreads > 32) {
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = over_warp(threadIdx.x % 32 < kThreads / 32 ? of_warps[threadIdx.x % 32] : 0.0f);
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (kCluster > 1) {
        if (threadIdx.x < kCluster) {
            const unsigned mine = static_cast<unsigned>(__cvta_generic_to_shared(&of_blocks[rank]));
            unsigned theirs;
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(threadIdx.x));
            asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(theirs), "f"(sum) : "memory");
        }
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
        sum = 0.0f;
#pragma unroll
        for (int other = 0; other < kCluster; ++other) sum += of_blocks[other];
    }
#endif
    const unsigned mixed = __float_as_uint(sum);
STORES
}

using Vector = VECTOR;

__device__ __forceinline__ unsigned mix(uint4 v) { return v.x ^ (v.y * 3u) ^ (v.z * 5u) ^ (v.w * 7u); }
__device__ __forceinline__ unsigned mix(uint2 v) { return v.x ^ (v.y * 3u); }
__device__ __forceinline__ unsigned mix(unsigned v) { return v; }

// As source[at], without a line in L1.
__device__ __forceinline__ uint4 past_l1(const uint4* source) {
    uint4 v;
    asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(source));
    return v;
}

// Reads `sources` vectors and writes `targets` and `extras` of them, FLIGHT a thread in flight.
extern "C" __global__ void __launch_bounds__(THREADS)
    elementwise(Vector* __restrict__ target, const Vector* __restrict__ source, Vector* __restrict__ extra,
                long long targets, long long sources, long long extras, int vectors) {
    constexpr int kFlight = FLIGHT, kTile = THREADS * kFlight;
    unsigned mixed = 0;
    for (long long first = BLOCK * static_cast<long long>(kTile) + threadIdx.x; first < vectors;
         first += gridDim.x * static_cast<long long>(kTile)) {
        Vector held[kFlight] = {};
#pragma unroll
        for (int k = 0; k < kFlight; ++k) {
            const long long at = first + k * THREADS;
            if (at < sources) held[k] = LOAD;
        }
#pragma unroll
        for (int k = 0; k < kFlight; ++k) {
            const long long at = first + k * THREADS;
            if (at < targets) {
                STORE;
            } else {
                mixed ^= mix(held[k]);
            }
            if (at < extras) extra[at] = held[k];
        }
    }
    // Keeps alive the loads of what is read and not written: almost no data makes it happen.
    if (mixed == 0x9e3779b9u) target[0] = Vector{};
}

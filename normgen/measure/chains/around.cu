// Early: the next kernel may start at once, and this one waits for all before it ahead of its first access.
template <bool kEarly>
__device__ __forceinline__ void begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (kEarly) {
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }
#endif
}

// P: each thread copies four 16-byte vectors, all loads before the first store.
template <bool kEarly>
__device__ __forceinline__ void produce_vectors(uint4* __restrict__ target, const uint4* __restrict__ source,
                                                int vectors) {
    begin<kEarly>();
    const long long first = blockIdx.x * 1024LL + threadIdx.x;
    uint4 held[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if (first + k * 256 < vectors) held[k] = source[first + k * 256];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if (first + k * 256 < vectors) target[first + k * 256] = held[k];
    }
}

// C: each thread reads four 16-byte vectors of up to four regions, which follow each other; a thread that reaches the
// end of the last one goes on at the first. The store keeps the loads alive: almost no data makes it happen.
template <bool kEarly>
__device__ __forceinline__ void consume_vectors(uint4* __restrict__ sink, const uint4* a, const uint4* b,
                                                const uint4* c, const uint4* d, long long a_vectors,
                                                long long b_vectors, long long c_vectors, long long d_vectors,
                                                int vectors) {
    begin<kEarly>();
    const long long first = blockIdx.x * 1024LL + threadIdx.x;
    const long long all = a_vectors + b_vectors + c_vectors + d_vectors;
    uint4 held[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        long long at = first + k * 256;
        held[k] = make_uint4(0, 0, 0, 0);
        if (at < vectors) {
            while (at >= all) at -= all;
            const uint4* from = a;
            if (at >= a_vectors) {
                at -= a_vectors;
                from = b;
                if (at >= b_vectors) {
                    at -= b_vectors;
                    from = c;
                    if (at >= c_vectors) {
                        at -= c_vectors;
                        from = d;
                    }
                }
            }
            held[k] = from[at];
        }
    }
    unsigned mixed = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) mixed ^= held[k].x ^ (held[k].y * 3u) ^ (held[k].z * 5u) ^ (held[k].w * 7u);
    if (mixed == 0x9e3779b9u) sink[0] = make_uint4(mixed, mixed, mixed, mixed);
}

#define PRODUCER(name, early)                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
        name(uint4* __restrict__ target, const uint4* __restrict__ source, int vectors) {                      \
        produce_vectors<early>(target, source, vectors);                                                       \
    }
#define CONSUMER(name, early)                                                                                  \
    extern "C" __global__ void __launch_bounds__(256)                                                          \
        name(uint4* __restrict__ sink, const uint4* a, const uint4* b, const uint4* c, const uint4* d,         \
             long long a_vectors, long long b_vectors, long long c_vectors, long long d_vectors, int vectors) { \
        consume_vectors<early>(sink, a, b, c, d, a_vectors, b_vectors, c_vectors, d_vectors, vectors);         \
    }

PRODUCER(produce, false)
PRODUCER(produce_early, true)
CONSUMER(consume, false)
CONSUMER(consume_early, true)

// Reads everything and keeps nothing: the store happens only for a sum that zeroed memory never has.
// A fill would leave dirty lines behind, and the next kernel would pay for writing them back.
extern "C" __global__ void __launch_bounds__(256) read_elements(uint4* __restrict__ target,
                                                                const uint4* __restrict__ source, int vectors) {
    const long long first = blockIdx.x * 1024LL + threadIdx.x;
    unsigned mixed = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if (first + k * 256 < vectors) {
            const uint4 v = source[first + k * 256];
            mixed |= v.x | v.y | v.z | v.w;
        }
    }
    if (mixed != 0) target[0] = make_uint4(mixed, mixed, mixed, mixed);
}

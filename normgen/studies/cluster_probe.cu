extern "C" __global__ void cluster_barrier(unsigned* out, const unsigned* in, int count) {
    for (int i = 0; i < count; ++i) {
        asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    }
    out[threadIdx.x] = count;
}

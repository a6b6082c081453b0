// Adds `parts` rows of partial sums: 8 threads a column, then one of them adds theirs and stores.
extern "C" __global__ void __launch_bounds__(256)
    add_partials(ELEMENT* __restrict__ sums, const float* __restrict__ partials) {
    constexpr int kParts = PARTS, kColumns = COLUMNS;
    __shared__ float shared[8][32];
    const int column = blockIdx.x * 32 + threadIdx.x % 32, lane = threadIdx.x / 32;
    float sum = 0.0f;
    if (column < kColumns) {
#pragma unroll 4
        for (int part = lane; part < kParts; part += 8) {
            sum += partials[part * static_cast<long long>(kColumns) + column];
        }
    }
    shared[lane][threadIdx.x % 32] = sum;
    __syncthreads();
    if (lane == 0 && column < kColumns) {
        for (int other = 1; other < 8; ++other) sum += shared[other][threadIdx.x];
        sums[column] = static_cast<ELEMENT>(sum);
    }
}

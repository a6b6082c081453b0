// ---- instructions ----------------------------------------------------------------------------------------------

struct bfloat16 {
  unsigned short bits;
};

__device__ __forceinline__ unsigned short float_to_bfloat16(float value) {
#if __CUDA_ARCH__ >= 800
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fff;                               // any NaN
  return static_cast<unsigned short>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
#endif
}

__device__ __forceinline__ unsigned floats_to_bfloat162(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  return float_to_bfloat16(low) | (static_cast<unsigned>(float_to_bfloat16(high)) << 16);
#endif
}

// Cached at all levels.
template <typename Word>
__device__ __forceinline__ Word load_default(const Word* address) {
  return *address;
}

// Written back as usual.
template <typename Word>
__device__ __forceinline__ void store_default(Word* address, Word value) {
  *address = value;
}

// Programmatic dependent launch: wait until the kernel before this one has ended and its writes are visible.
__device__ __forceinline__ void dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ... and let the kernel behind this one start as soon as blocks leave room.
__device__ __forceinline__ void dependency_trigger() {
  asm volatile("griddepcontrol.launch_dependents;");
}

// This block's rank among the blocks of its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Writes `value` to where block `rank` of the cluster has the shared variable `own`.
template <typename T>
__device__ __forceinline__ void cluster_store(T* own, unsigned rank, const T& value) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank));
  const float* words = reinterpret_cast<const float*>(&value);
#pragma unroll
  for (unsigned i = 0; i < sizeof(T) / 4; ++i) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(remote + 4 * i), "f"(words[i]) : "memory");
  }
}

// Reads what block `rank` of the cluster has in the shared variable `own`: a float, or four of them at a time.
__device__ __forceinline__ void cluster_load(float (&value)[1], const float* own, unsigned rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value[0]) : "r"(remote) : "memory");
}
__device__ __forceinline__ void cluster_load(float (&values)[4], const float* own, unsigned rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 { %0, %1, %2, %3 }, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3]) : "r"(remote) : "memory");
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return bytes;
}
// ---- vectors of stored elements ---------------------------------------------------------------------------------

// N elements as 32-bit registers, moved by the widest words that fit (at most 16 bytes each).
template <typename T, int N>
struct Vec {
  static constexpr int kBytes = N * static_cast<int>(sizeof(T));
  static constexpr int kRegisters = kBytes < 4 ? 1 : kBytes / 4;
  unsigned bits[kRegisters];
};

template <int kBytes> struct WordOf { using type = uint4; };
template <> struct WordOf<8> { using type = uint2; };
template <> struct WordOf<4> { using type = unsigned; };
template <> struct WordOf<2> { using type = unsigned short; };

__device__ __forceinline__ void split(unsigned short word, unsigned* bits) { bits[0] = word; }
__device__ __forceinline__ void split(unsigned word, unsigned* bits) { bits[0] = word; }
__device__ __forceinline__ void split(uint2 word, unsigned* bits) { bits[0] = word.x; bits[1] = word.y; }
__device__ __forceinline__ void split(uint4 word, unsigned* bits) {
  bits[0] = word.x; bits[1] = word.y; bits[2] = word.z; bits[3] = word.w;
}
__device__ __forceinline__ void join(unsigned short& word, const unsigned* bits) {
  word = static_cast<unsigned short>(bits[0]);
}
__device__ __forceinline__ void join(unsigned& word, const unsigned* bits) { word = bits[0]; }
__device__ __forceinline__ void join(uint2& word, const unsigned* bits) { word = make_uint2(bits[0], bits[1]); }
__device__ __forceinline__ void join(uint4& word, const unsigned* bits) {
  word = make_uint4(bits[0], bits[1], bits[2], bits[3]);
}

template <int N>
__device__ __forceinline__ float element(const Vec<float, N>& vec, int i) { return __uint_as_float(vec.bits[i]); }

template <int N>
__device__ __forceinline__ void pack(Vec<float, N>& vec, const float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) vec.bits[i] = __float_as_uint(values[i]);
}

template <int N>
__device__ __forceinline__ float element(const Vec<bfloat16, N>& vec, int i) {
  if (i % 2 == 1) return __uint_as_float(vec.bits[i / 2] & 0xffff0000u);
  return __uint_as_float(vec.bits[i / 2] << 16);
}

template <int N>
__device__ __forceinline__ void pack(Vec<bfloat16, N>& vec, const float (&values)[N]) {
  if (N == 1) {
    vec.bits[0] = float_to_bfloat16(values[0]);
  } else {
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) vec.bits[i / 2] = floats_to_bfloat162(values[i], values[i + 1]);
  }
}

template <int N, typename T>
__device__ __forceinline__ Vec<T, N> read_default(const T* elements) {
  using Word = typename WordOf<Vec<T, N>::kBytes>::type;
  Vec<T, N> vec;
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kBytes / static_cast<int>(sizeof(Word)); ++i) {
    split(load_default(reinterpret_cast<const Word*>(elements) + i), vec.bits + i * sizeof(Word) / 4);
  }
  return vec;
}

template <int N, typename T>
__device__ __forceinline__ void write_default(T* elements, const Vec<T, N>& vec) {
  using Word = typename WordOf<Vec<T, N>::kBytes>::type;
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kBytes / static_cast<int>(sizeof(Word)); ++i) {
    Word word;
    join(word, vec.bits + i * sizeof(Word) / 4);
    store_default(reinterpret_cast<Word*>(elements) + i, word);
  }
}

// ---- row reduction ----------------------------------------------------------------------------------------------

// Look 1: sum(dxhat*xhat)
struct Look1 {
  float dxhat_xhat_sum;
};

__device__ __forceinline__ Look1 combine(const Look1& a, const Look1& b) {
  return {a.dxhat_xhat_sum + b.dxhat_xhat_sum};
}

__device__ __forceinline__ Look1 shuffle_xor(const Look1& s, int offset) {
  return {__shfl_xor_sync(0xffffffffu, s.dxhat_xhat_sum, offset)};
}

// All kLanes neighbouring lanes end with the combined state.
template <int kLanes, typename State>
__device__ __forceinline__ State reduce_lanes(State s) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) s = combine(s, shuffle_xor(s, offset));
  return s;
}

// Warps first, then every warp combines the warps' states redundantly: one barrier, no broadcast.
template <int kWarps, typename State>
__device__ __forceinline__ State reduce_row(State s, State* slots) {
  s = reduce_lanes<32>(s);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32 % kWarps] = s;
  __syncthreads();
  return reduce_lanes<kWarps>(slots[threadIdx.x % kWarps]);
}

// rmsnorm backward, 1024 columns: 64 threads own a row, 4 rows a block, 2 blocks share their column sums; it is read once.
// It may start while the kernel in front of it in the stream ends.
extern "C" __global__ void __launch_bounds__(256)
rmsnorm_bwd_bf16_1024_block_per_row_dc216a(
    bfloat16* __restrict__ dx,
    bfloat16* __restrict__ dweight,
    const bfloat16* dy,
    const bfloat16* x,
    const bfloat16* weight,
    const float* rstd,
    long long dx_pitch,
    long long dy_pitch,
    long long x_pitch,
    int rows,
    float eps,
    float* partials) {
  constexpr int kCols = 1024;
  constexpr int kThreadsPerRow = 64;
  constexpr int kCluster = 2;  // blocks that add their column sums
  constexpr int kRowsPerBlock = 4;
  constexpr int kThreads = 256;
  constexpr int kVector = 8;  // elements per access of 16 bytes
  constexpr int kWarpsPerRow = kThreadsPerRow / 32;
  constexpr int kVectors = kCols / kVector;  // per row
  constexpr int kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow;  // vectors a thread owns
  constexpr int kPitch = 1024;  // columns of a row of float32 sums, padded
  constexpr int kStretch = (kCols + 4 * kCluster - 1) / (4 * kCluster) * 4;  // columns that a block of the cluster adds
  __shared__ Look1 look1_slots[2][4][kWarpsPerRow];

  const int lane = threadIdx.x % kThreadsPerRow;
  const int slot = threadIdx.x / kThreadsPerRow;  // this thread's row within the block
  int parity = 0;

  dependency_wait();  // nothing before it depends on the kernels in front of this one

  Vec<bfloat16, kVector> weight_held[kSteps];

  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    weight_held[step] = read_default<kVector>(weight + vector * kVector);
  }

  // Sums over the rows of this thread, column by column.
  float dweight_sum[kSteps][kVector] = {};

  float* column_sums = reinterpret_cast<float*>(dynamic_shared() + 0);

  Vec<bfloat16, kVector> dy_next[kSteps];
  Vec<bfloat16, kVector> x_next[kSteps];
  float rstd_next;
  // The loads of the next row travel while this one is computed.
  const auto fetch = [&](int first_row) {
    const int fetched_row = min(first_row + slot, rows - 1);
    const bfloat16* dy_row = dy + static_cast<long long>(fetched_row) * dy_pitch;
    const bfloat16* x_row = x + static_cast<long long>(fetched_row) * x_pitch;
    rstd_next = rstd[fetched_row];
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = lane + step * kThreadsPerRow;
      dy_next[step] = read_default<kVector>(dy_row + vector * kVector);
      x_next[step] = read_default<kVector>(x_row + vector * kVector);
    }
  };
  if (blockIdx.x * kRowsPerBlock < rows) fetch(blockIdx.x * kRowsPerBlock);

  for (int first_row = blockIdx.x * kRowsPerBlock; first_row < rows; first_row += gridDim.x * kRowsPerBlock) {
    const int row = first_row + slot;
    const bool active = row < rows;  // idle rows recompute the last row and store nothing
    const int valid_row = active ? row : rows - 1;
    bfloat16* dx_row = dx + static_cast<long long>(valid_row) * dx_pitch;
    const float row_rstd = rstd_next;

    Vec<bfloat16, kVector> dy_held[kSteps];
    Vec<bfloat16, kVector> x_held[kSteps];

    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      dy_held[step] = dy_next[step];
      x_held[step] = x_next[step];
    }

    if (first_row + gridDim.x * kRowsPerBlock < rows) fetch(first_row + gridDim.x * kRowsPerBlock);

    Look1 look1 = {0.0f};

    // Look 1: sum(dxhat*xhat)
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float dy_i = element(dy_held[step], i);
        const float x_i = element(x_held[step], i);
        const float weight_i = element(weight_held[step], i);
        const float dxhat_i = dy_i * weight_i;
        const float xhat_i = x_i * row_rstd;
        look1.dxhat_xhat_sum += dxhat_i * xhat_i;
      }
    }

    look1 = reduce_row<kWarpsPerRow>(look1, look1_slots[parity][slot]);
    const float row_dxhat_xhat_mean = look1.dxhat_xhat_sum / kCols;

    // Last look: the outputs
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = lane + step * kThreadsPerRow;
      float dx_values[kVector];
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float dy_i = element(dy_held[step], i);
        const float x_i = element(x_held[step], i);
        const float weight_i = element(weight_held[step], i);
        const float dxhat_i = dy_i * weight_i;
        const float xhat_i = x_i * row_rstd;
        dx_values[i] = (dxhat_i - xhat_i * row_dxhat_xhat_mean) * row_rstd;
        if (active) dweight_sum[step][i] += dy_i * xhat_i;
      }
      Vec<bfloat16, kVector> dx_vec;
      pack(dx_vec, dx_values);
      if (active) write_default(dx_row + vector * kVector, dx_vec);
    }

    parity ^= 1;
  }

  // The row groups of this block leave their sums side by side ...
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    #pragma unroll
    for (int i = 0; i < kVector; ++i) {
      column_sums[slot * 1 * kPitch + i * kVectors + vector] = dweight_sum[step][i];
    }
  }

  __syncthreads();
  // ... and are added in a fixed order.
  for (int cell = threadIdx.x; cell < kCols; cell += kThreads) {
    column_sums[cell] = column_sums[cell] + column_sums[kPitch + cell] + column_sums[2 * kPitch + cell] + column_sums[3 * kPitch + cell];
  }

  // The blocks of a cluster have left their sums where the others read them: each adds a stretch of the columns, block
  // by block in the order of ranks.
  cluster_arrive();
  cluster_wait();
  const int stretch = static_cast<int>(cluster_rank()) * kStretch;
  for (int cell = stretch + 4 * threadIdx.x; cell < min(stretch + kStretch, kCols); cell += 4 * kThreads) {
    float parts[1][kCluster][4];
    #pragma unroll
    for (int rank = 0; rank < kCluster; ++rank) {
      cluster_load(parts[0][rank], column_sums + cell, rank);
    }
    #pragma unroll
    for (int rank = 1; rank < kCluster; ++rank) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        parts[0][0][i] += parts[0][rank][i];
      }
    }
    float* partial_row = partials + static_cast<long long>(blockIdx.x / kCluster) * 1 * kPitch;
    const float (&total_0)[4] = parts[0][0];
    *reinterpret_cast<float4*>(partial_row + cell) =
        make_float4(total_0[0], total_0[1], total_0[2], total_0[3]);
  }
  cluster_arrive();
  cluster_wait();  // a block may end only once nobody reads its sums any more

  dependency_trigger();  // the next kernel may start
}

// Adds the partial rows of the kernel above, cell by cell and always in the same order.
extern "C" __global__ void __launch_bounds__(512)
rmsnorm_bwd_bf16_1024_block_per_row_dc216a_finish(
    bfloat16* __restrict__ dweight,
    const float* partials,
    int blocks) {
  constexpr int kCols = 1024;
  constexpr int kPitch = 1024;
  constexpr int kVector = 8;
  constexpr int kVectors = 128;
  constexpr int kTensors = 1;
  constexpr int kCells = 8;  // of a block
  constexpr int kLanes = 512 / kCells;  // threads that share a cell
  constexpr int kWarps = 512 / 32;
  constexpr int kInFlight = 12;  // loads of a thread that travel at once: the sums are bound by latency
  __shared__ float warp_sums[kWarps][kCells];

  const int partial_rows = blocks / 2;  // the blocks of a cluster fill one together
  constexpr int tensor = 0;
  const int cell = blockIdx.x / kTensors * kCells + threadIdx.x % kCells;
  dependency_wait();
  float sum = 0.0f;
  for (int first = threadIdx.x / kCells; first < partial_rows; first += kInFlight * kLanes) {
    float values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int row = first + i * kLanes;
      const float* partial_row = partials + (static_cast<long long>(row) * kTensors + tensor) * kPitch;
      values[i] = row < partial_rows ? load_default(partial_row + cell) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum += values[i];
  }
#pragma unroll
  for (int offset = kCells; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 < kCells) warp_sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();

  const int column = cell % kVectors * kVector + cell / kVectors;
  if (threadIdx.x < kCells && cell < kCols) {
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += warp_sums[warp][threadIdx.x];
    if (tensor == 0) {
      Vec<bfloat16, 1> dweight_vec = {};
      const float dweight_value[1] = {total};
      pack(dweight_vec, dweight_value);
      write_default(dweight + column, dweight_vec);
    }
  }
}

// ---- instructions ----------------------------------------------------------------------------------------------

// Cached at all levels.
template <typename Word>
__device__ __forceinline__ Word load_default(const Word* address) {
  return *address;
}

// Cached in L2 only (ld.global.cg).
template <typename Word>
__device__ __forceinline__ Word load_cache_global(const Word* address) {
  return __ldcg(address);
}

// Written back as usual.
template <typename Word>
__device__ __forceinline__ void store_default(Word* address, Word value) {
  *address = value;
}

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

// rmsnorm backward, 768 columns: 64 threads own a row; it is read once.
extern "C" __global__ void __launch_bounds__(64)
rmsnorm_bwd_f32_768_block_per_row_68700a(
    float* __restrict__ dx,
    float* __restrict__ dweight,
    const float* __restrict__ dy,
    const float* __restrict__ x,
    const float* __restrict__ weight,
    const float* __restrict__ rstd,
    long long dx_pitch,
    long long dy_pitch,
    long long x_pitch,
    int rows,
    float eps,
    unsigned* __restrict__ tickets,
    float* __restrict__ partials) {
  constexpr int kCols = 768;
  constexpr int kThreadsPerRow = 64;
  constexpr int kThreads = 64;
  constexpr int kVector = 4;  // elements per access of 16 bytes
  constexpr int kWarpsPerRow = kThreadsPerRow / 32;
  constexpr int kVectors = kCols / kVector;  // per row
  constexpr int kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow;  // vectors a thread owns
  constexpr int kPitch = 768;  // columns of a row of float32 sums, padded
  constexpr int kRowSums = 1 * kPitch;  // cells of a partial row
  constexpr int kTileSums = 128;  // of them in a tile
  constexpr int kTiles = 6;
  __shared__ Look1 look1_slots[2][1][kWarpsPerRow];

  const int lane = threadIdx.x;
  const int slot = 0;  // this thread's row within the block
  int parity = 0;

  // Sums over the rows of this thread, column by column.
  float dweight_sum[kSteps][kVector] = {};

  float* column_sums = reinterpret_cast<float*>(dynamic_shared() + 0);

  for (int first_row = blockIdx.x; first_row < rows; first_row += gridDim.x) {
    const int row = first_row;
    float* dx_row = dx + static_cast<long long>(row) * dx_pitch;
    const float* dy_row = dy + static_cast<long long>(row) * dy_pitch;
    const float* x_row = x + static_cast<long long>(row) * x_pitch;
    const float row_rstd = rstd[row];

    Vec<float, kVector> dy_held[kSteps];
    Vec<float, kVector> x_held[kSteps];

    // The row of dy and x is read once and waits in registers; each thread reads back its own part.
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = lane + step * kThreadsPerRow;
      dy_held[step] = read_default<kVector>(dy_row + vector * kVector);
      x_held[step] = read_default<kVector>(x_row + vector * kVector);
    }

    Look1 look1 = {0.0f};

    // Look 1: sum(dxhat*xhat)
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = lane + step * kThreadsPerRow;
      const Vec<float, kVector> weight_vec = read_default<kVector>(weight + vector * kVector);
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float dy_i = element(dy_held[step], i);
        const float x_i = element(x_held[step], i);
        const float weight_i = element(weight_vec, i);
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
      const Vec<float, kVector> weight_vec = read_default<kVector>(weight + vector * kVector);
      float dx_values[kVector];
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float dy_i = element(dy_held[step], i);
        const float x_i = element(x_held[step], i);
        const float weight_i = element(weight_vec, i);
        const float dxhat_i = dy_i * weight_i;
        const float xhat_i = x_i * row_rstd;
        dx_values[i] = (dxhat_i - xhat_i * row_dxhat_xhat_mean) * row_rstd;
        dweight_sum[step][i] += dy_i * xhat_i;
      }
      Vec<float, kVector> dx_vec;
      pack(dx_vec, dx_values);
      write_default(dx_row + vector * kVector, dx_vec);
    }

    parity ^= 1;
  }

  // One sum per column leaves the block.
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    #pragma unroll
    for (int i = 0; i < kVector; ++i) {
      partials[static_cast<long long>(blockIdx.x) * 1 * kPitch + i * kVectors + vector] = dweight_sum[step][i];
    }
  }

  // Tile by tile of columns, the last block to arrive adds all partial rows in a fixed order and leaves the workspace
  // ready for the next call. Blocks start at different tiles, so that several of them finish.
  __shared__ bool is_last;
  __threadfence();
  for (int visit = 0; visit < kTiles; ++visit) {
    const int tile = (blockIdx.x + visit) % kTiles;
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(tickets + tile * 32, 1u) + 1 == gridDim.x;
    __syncthreads();
    if (!is_last) continue;
    __threadfence();
    if (threadIdx.x == 0) tickets[tile * 32] = 0;
    for (int first = tile * kTileSums; first < min((tile + 1) * kTileSums, kRowSums); first += 128) {
      // Each warp adds every kWarps-th partial row, a lane four cells of it; eight loads travel at once ...
      const int own = first + threadIdx.x % 32 * 4;
      const int partial_rows = own < kRowSums ? static_cast<int>(gridDim.x) : 0;
      float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int next = threadIdx.x / 32; next < partial_rows; next += 8 * (kThreads / 32)) {
        float4 parts[8];
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int row = next + i * (kThreads / 32);
          const float* from = partials + static_cast<long long>(row) * kRowSums + own;
          parts[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if (row < partial_rows) parts[i] = load_cache_global(reinterpret_cast<const float4*>(from));
        }
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
          sums.x += parts[i].x;
          sums.y += parts[i].y;
          sums.z += parts[i].z;
          sums.w += parts[i].w;
        }
      }
      reinterpret_cast<float4*>(column_sums)[threadIdx.x] = sums;
      __syncthreads();
      // ... and the warps' sums are added.
      for (int i = threadIdx.x; i < 128; i += kThreads) {
        float total = 0.0f;
        #pragma unroll
        for (int warp = 0; warp < kThreads / 32; ++warp) total += column_sums[warp * 128 + i];
        const int cell = (first + i) % kPitch;
        const int column = cell % kVectors * kVector + cell / kVectors;
        if (first + i >= kRowSums || cell >= kCols) continue;
        Vec<float, 1> dweight_vec = {};
        const float dweight_value[1] = {total};
        pack(dweight_vec, dweight_value);
        write_default(dweight + column, dweight_vec);
      }
      __syncthreads();
    }
  }
}

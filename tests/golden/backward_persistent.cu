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

// Shared memory whose size the launch decides.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return bytes;
}

// The compiler no longer knows where the bits come from.
__device__ __forceinline__ void opaque(unsigned& bits) { asm volatile("" : "+r"(bits)); }

// The widest type that memory of that many bytes is accessed as, and its bits in registers.
template <int kBytes> struct WordOf { using type = uint4; };
template <> struct WordOf<8> { using type = uint2; };
template <> struct WordOf<4> { using type = unsigned; };
template <> struct WordOf<2> { using type = unsigned short; };
template <> struct WordOf<1> { using type = unsigned char; };
template <int kBytes> using Word = typename WordOf<kBytes>::type;

__device__ __forceinline__ void split(unsigned char word, unsigned* bits) { bits[0] = word; }
__device__ __forceinline__ void split(unsigned short word, unsigned* bits) { bits[0] = word; }
__device__ __forceinline__ void split(unsigned word, unsigned* bits) { bits[0] = word; }
__device__ __forceinline__ void split(uint2 word, unsigned* bits) { bits[0] = word.x; bits[1] = word.y; }
__device__ __forceinline__ void split(uint4 word, unsigned* bits) {
  bits[0] = word.x; bits[1] = word.y; bits[2] = word.z; bits[3] = word.w;
}
template <int kBytes>
__device__ __forceinline__ Word<kBytes> join(const unsigned* bits) {
  if constexpr (kBytes == 16) return make_uint4(bits[0], bits[1], bits[2], bits[3]);
  else if constexpr (kBytes == 8) return make_uint2(bits[0], bits[1]);
  else return static_cast<Word<kBytes>>(bits[0]);
}

// Cached at all levels, written back as usual.
struct Default {
  template <int kBytes>
  static __device__ __forceinline__ void load(const void* address, unsigned* bits) {
    split(*static_cast<const Word<kBytes>*>(address), bits);
  }
  template <int kBytes>
  static __device__ __forceinline__ void store(void* address, const unsigned* bits) {
    *static_cast<Word<kBytes>*>(address) = join<kBytes>(bits);
  }
};

// N elements as they are stored, in 32-bit registers; moved by the widest words that fit, at most 16 bytes each.
template <typename T, int N>
struct Vec {
  static constexpr int kBytes = N * static_cast<int>(sizeof(T));
  static constexpr int kWordBytes = kBytes < 16 ? kBytes : 16;
  static constexpr int kRegisters = kBytes < 4 ? 1 : kBytes / 4;
  unsigned bits[kRegisters];
};

template <int N, typename Hint = Default, typename T>
__device__ __forceinline__ Vec<T, N> read(const T* elements) {
  constexpr int kBytes = Vec<T, N>::kWordBytes;
  Vec<T, N> vec;
  #pragma unroll
  for (int i = 0; i < Vec<T, N>::kBytes; i += kBytes) {
    Hint::template load<kBytes>(reinterpret_cast<const unsigned char*>(elements) + i, vec.bits + i / 4);
  }
  return vec;
}

template <typename Hint = Default, typename T, int N>
__device__ __forceinline__ void write(T* elements, const Vec<T, N>& vec) {
  constexpr int kBytes = Vec<T, N>::kWordBytes;
  #pragma unroll
  for (int i = 0; i < Vec<T, N>::kBytes; i += kBytes) {
    Hint::template store<kBytes>(reinterpret_cast<unsigned char*>(elements) + i, vec.bits + i / 4);
  }
}

template <int N>
__device__ __forceinline__ float element(const Vec<float, N>& vec, int i) { return __uint_as_float(vec.bits[i]); }

template <int N>
__device__ __forceinline__ void pack(Vec<float, N>& vec, const float (&values)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) vec.bits[i] = __float_as_uint(values[i]);
}

// Two elements share a register.
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

// How a kernel and its neighbours in the stream overlap: not at all.
// wait              before the first access to what the kernels in front write, or still read
// wait_for_partner  in a call's second kernel, before the first access to what the first one writes
// at_...            here the kernel behind this one may start: it takes the place of blocks as they end
// Pointer           to what is only read: while kernels in front may still write it, it is not `__restrict__`, by which
//                   the compiler would read it through the non-coherent cache and move loads over a wait
struct InOrder {
  template <typename T> using Pointer = const T* __restrict__;
  static __device__ __forceinline__ void wait() {}
  static __device__ __forceinline__ void wait_for_partner() {}
  static __device__ __forceinline__ void at_start() {}
  static __device__ __forceinline__ void at_loads() {}
  static __device__ __forceinline__ void at_end() {}
};

template <class Config, typename T> using Input = typename Config::Chain::template Pointer<T>;

// The lanes that a shuffle names: all of the warp.
struct WholeWarp {
  template <int kLanes>
  static __device__ __forceinline__ unsigned lanes() { return 0xffffffffu; }
};

// All kLanes neighbouring lanes, a power of two, end with the combined state. A state is a struct of floats that knows
// how two combine, and how to get that of the lane whose number differs by `offset`.
template <int kLanes, class Named = WholeWarp, typename State>
__device__ __forceinline__ State reduce_lanes(State s) {
  const unsigned mask = Named::template lanes<kLanes>();
  #pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) s = State::combine(s, State::shuffle_xor(s, offset, mask));
  return s;
}

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

// Lanes of a warp are a team: they combine by shuffles alone.
template <int kThreadsPerRow, int kRowsPerBlock, class Named = WholeWarp>
struct Lanes : Threads<kThreadsPerRow, kRowsPerBlock> {
  template <typename State> struct Slots {};
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, Slots<State>&) {
    return reduce_lanes<kThreadsPerRow, Named>(s);
  }
};

// The sum of N terms, N a power of two, as a tree: log2(N) roundings on the way of each term.
template <int N>
__device__ __forceinline__ float sum_in_pairs(const float (&terms)[N]) {
  float sums[N];
  #pragma unroll
  for (int k = 0; k < N; ++k) sums[k] = terms[k];
  #pragma unroll
  for (int n = N / 2; n > 0; n /= 2) {
    #pragma unroll
    for (int k = 0; k < n; ++k) sums[k] += sums[k + n];
  }
  return sums[0];
}

// The sum of what kWarps warps have left in column `cell`. In one chain of additions nearly every partial sum would be
// as large as the total and round as much: of 16 equally large terms, twice the squared error of four short chains.
template <int kWarps, int kPitch>
__device__ __forceinline__ float total_of_warps(const float (*warp_sums)[kPitch], int cell) {
  float sums[4] = {};  // one addition does not wait for another; a tree of 16 terms is not unrolled by NVRTC 13.0
  #pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sums[warp % 4] += warp_sums[warp][cell];
  return sum_in_pairs(sums);
}

// Partial rows of column sums: each block has left one row of kTensors times kPitch float32 cells. kThreads threads add
// kCells neighbouring cells of all rows, from `cell` on, always in the same order: every warp's sums in shared memory.
template <int kThreads, int kCells, int kTensors, int kPitch>
__device__ __forceinline__ void add_partial_rows(
    const float* partials, int partial_rows, int tensor, int cell, float (&warp_sums)[kThreads / 32][kCells]) {
  constexpr int kLanes = kThreads / kCells;  // threads that share a cell
  constexpr int kInFlight = 12;              // loads of a thread that travel at once: the sums are bound by latency
  float sums[4] = {};                        // short chains of additions: few roundings, and none waits for another
  for (int first = threadIdx.x / kCells; first < partial_rows; first += kInFlight * kLanes) {
    float values[kInFlight];
    #pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int row = first + i * kLanes;
      const float* partial_row = partials + (static_cast<long long>(row) * kTensors + tensor) * kPitch;
      values[i] = row < partial_rows ? partial_row[cell] : 0.0f;
    }
    #pragma unroll
    for (int i = 0; i < kInFlight; ++i) sums[i % 4] += values[i];
  }
  float sum = sum_in_pairs(sums);
  #pragma unroll
  for (int offset = kCells; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 < kCells) warp_sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
}

// Blocks of one tile of rows take the tiles in order. `last` is the number of the last tile.
struct FirstRowsFirst {
  static __device__ __forceinline__ unsigned tile(unsigned block, int) { return block; }
};

// Values of rows are divided by a length as IEEE 754 says.
struct IeeeDivision {
  static __device__ __forceinline__ float of(float value, int length) { return value / length; }
};

// Parameters are read in their turn.
struct InTurn {
  template <typename T>
  static __device__ __forceinline__ void to_l2(const T*, int) {}
};

// What a Config names but where it says otherwise. Its sizes are counted in elements, threads, rows or blocks.
struct Plain {
  using Load = Default;           // how rows are read
  using Store = Default;          // how rows are written
  using Chain = InOrder;          // how a kernel overlaps with its neighbours in the stream
  using Params = InTurn;          // whether column parameters are asked for ahead of the rows
  using Division = IeeeDivision;  // of values of rows by the number of columns
  using Order = FirstRowsFirst;   // which tile of rows is the first block's
  // kCluster: blocks that share a row, or add their column sums; kBlocksPerSm: a launch bound, 0 is none
  enum : int { kCluster = 1, kBlocksPerSm = 0 };
};

// Hides from the compiler what the vector holds: it would convert kept parameters to floats once, for all rows, and
// keep those, in twice the registers.
template <int N, typename T>
__device__ __forceinline__ void stay_packed(Vec<T, N>& vec) {
  #pragma unroll
  for (int i = 0; i < Vec<T, N>::kRegisters; ++i) opaque(vec.bits[i]);
}

// elements[at] = value, rounded as it is stored.
template <typename T>
__device__ __forceinline__ void write_element(T* elements, int at, float value) {
  Vec<T, 1> vec = {};
  const float values[1] = {value};
  pack(vec, values);
  write(elements + at, vec);
}

// kVector        elements per access
// kStride        columns from one vector of a thread to its next
// kRunningSums   running sums that a vector adds to
// kEarlyParams   column parameters wait in registers, or are read where they are used
// kPackedParams  column parameters stay as they are stored while they wait in registers
// kVectors       vectors of a row
// kSteps         vectors a thread owns
// kEven          all threads own kSteps of them
// kAhead         the next row is loaded while the present one is computed
// kPitch         columns of a row of float32 sums, padded
// kTensors       tensors that are summed over rows
// kGroups        row groups of a block that keep sums of their own
// kSumVector     columns whose sums lie kSumVectors cells apart
// kCluster       blocks that fill a partial row together
// kCells         sums that a block adds

struct Cols768 : Plain { using Team = Lanes<32, 4>;
  enum : int { kCols = 768, kThreads = 128, kVector = 8, kEarlyParams = 1, kPackedParams = 0, kAhead = 1, kGroups = 4,
      kSumVector = 8, kCells = 8 };
};

struct Pass1 {  // state of pass 1: sum(dxhat * xhat), sum(dxhat)
  float dxhat_xhat_sum, dxhat_sum;
  static __device__ __forceinline__ Pass1 combine(const Pass1& a, const Pass1& b) {
    return {a.dxhat_xhat_sum + b.dxhat_xhat_sum, a.dxhat_sum + b.dxhat_sum};
  }
  static __device__ __forceinline__ Pass1 shuffle_xor(const Pass1& s, int offset, unsigned mask) {
    return {__shfl_xor_sync(mask, s.dxhat_xhat_sum, offset), __shfl_xor_sync(mask, s.dxhat_sum, offset)};
  }
};

// layernorm backward: a team of threads owns a row; each row is read once.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
layernorm_bwd_bf16_team_per_row(
    bfloat16* __restrict__ dx,
    bfloat16* __restrict__ dweight,
    bfloat16* __restrict__ dbias,
    Input<Config, bfloat16> dy,
    Input<Config, bfloat16> x,
    Input<Config, bfloat16> weight,
    Input<Config, float> mean,
    Input<Config, float> rstd,
    long long dx_pitch,
    long long dy_pitch,
    long long x_pitch,
    int rows,
    float* partials) {
  using Team = typename Config::Team;
  using Load = typename Config::Load;
  using Store = typename Config::Store;
  using Chain = typename Config::Chain;
  using Division = typename Config::Division;
  constexpr int kCols = Config::kCols, kThreads = Config::kThreads, kThreadsPerRow = Team::kSize,
      kRowsPerBlock = Team::kRows, kVector = Config::kVector, kStride = kThreadsPerRow * kVector,
      kRunningSums = kVector < 4 ? kVector : 4;
  constexpr bool kEarlyParams = Config::kEarlyParams, kPackedParams = Config::kPackedParams;
  constexpr int kVectors = kCols / kVector, kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow;
  constexpr bool kEven = kVectors % kThreadsPerRow == 0, kAhead = Config::kAhead;
  constexpr int kPitch = (kCols + 31) / 32 * 32, kTensors = 2, kGroups = Config::kGroups;
  __shared__ typename Team::template Slots<Pass1> pass1_slots[2];

  const int row_thread = Team::row_thread();
  const int first_col = row_thread * kVector;  // of this thread's first vector
  const int block_row = Team::block_row();  // this thread's row within the block
  int parity = 0;

  Chain::at_start();
  Chain::wait();  // what follows may read what earlier kernels in the stream wrote

  Vec<bfloat16, kVector> weight_held[kSteps];
  if (kEarlyParams) {
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = row_thread + step * kThreadsPerRow;
      if (kEven || vector < kVectors) {
        weight_held[step] = read<kVector>(weight + first_col + step * kStride);
      }
    }
  }

  // This thread's sums over its rows, one for each of its columns.
  float dweight_sum[kSteps][kVector] = {};
  float dbias_sum[kSteps][kVector] = {};
  float (*group_sums)[kTensors][kPitch] = reinterpret_cast<float (*)[kTensors][kPitch]>(dynamic_shared());

  Vec<bfloat16, kVector> dy_next[kSteps];
  Vec<bfloat16, kVector> x_next[kSteps];
  float mean_next;
  float rstd_next;
  // Prefetches a row into registers.
  const auto fetch = [&](int row) {
    const bfloat16* dy_row = dy + row * dy_pitch;
    const bfloat16* x_row = x + row * x_pitch;
    mean_next = mean[row];
    rstd_next = rstd[row];

    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = row_thread + step * kThreadsPerRow;
      if (kEven || vector < kVectors) {
        dy_next[step] = read<kVector, Load>(dy_row + first_col + step * kStride);
        x_next[step] = read<kVector, Load>(x_row + first_col + step * kStride);
      }
    }
  };
  if (kAhead && blockIdx.x * kRowsPerBlock < rows) fetch(Team::row(blockIdx.x * kRowsPerBlock, rows));

  for (int first_row = blockIdx.x * kRowsPerBlock; first_row < rows; first_row += gridDim.x * kRowsPerBlock) {
    const int row = first_row + block_row;
    const bool active = kRowsPerBlock == 1 || row < rows;  // threads past the last row redo it and store nothing
    const int valid_row = active ? row : rows - 1;
    bfloat16* dx_row = dx + valid_row * dx_pitch;
    if (!kAhead) fetch(valid_row);
    const float row_mean = mean_next;
    const float row_rstd = rstd_next;

    Vec<bfloat16, kVector> dy_held[kSteps];
    Vec<bfloat16, kVector> x_held[kSteps];

    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      dy_held[step] = dy_next[step];
      x_held[step] = x_next[step];
    }

    const unsigned next_row = first_row + gridDim.x * kRowsPerBlock;
    if (kAhead && next_row < rows) fetch(Team::row(next_row, rows));
    if (kPackedParams) {
      #pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        stay_packed(weight_held[step]);
      }
    }

    // several: shorter chains of additions, fewer roundings each
    float pass1_dxhat_xhat_sum[kRunningSums] = {}, pass1_dxhat_sum[kRunningSums] = {};

    // Pass 1: sum(dxhat * xhat), sum(dxhat)
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = row_thread + step * kThreadsPerRow;
      if (kEven || vector < kVectors) {
        if (!kEarlyParams) weight_held[step] = read<kVector>(weight + first_col + step * kStride);
        #pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float dy_i = element(dy_held[step], i);
          const float x_i = element(x_held[step], i);
          const float weight_i = element(weight_held[step], i);
          const float dxhat_i = dy_i * weight_i;
          const float xhat_i = (x_i - row_mean) * row_rstd;
          pass1_dxhat_xhat_sum[i % kRunningSums] += dxhat_i * xhat_i;
          pass1_dxhat_sum[i % kRunningSums] += dxhat_i;
        }
      }
    }

    Pass1 pass1 = {sum_in_pairs(pass1_dxhat_xhat_sum), sum_in_pairs(pass1_dxhat_sum)};
    pass1 = Team::reduce(pass1, pass1_slots[parity]);
    const float row_dxhat_xhat_mean = Division::of(pass1.dxhat_xhat_sum, kCols);
    const float row_dxhat_mean = Division::of(pass1.dxhat_sum, kCols);

    // Last pass: the outputs
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = row_thread + step * kThreadsPerRow;
      if (kEven || vector < kVectors) {
        if (!kEarlyParams) weight_held[step] = read<kVector>(weight + first_col + step * kStride);
        float dx_values[kVector];
        #pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float dy_i = element(dy_held[step], i);
          const float x_i = element(x_held[step], i);
          const float weight_i = element(weight_held[step], i);
          const float dxhat_i = dy_i * weight_i;
          const float xhat_i = (x_i - row_mean) * row_rstd;
          dx_values[i] = (dxhat_i - xhat_i * row_dxhat_xhat_mean - row_dxhat_mean) * row_rstd;
          if (active) dweight_sum[step][i] += dy_i * xhat_i;
          if (active) dbias_sum[step][i] += dy_i;
        }
        Vec<bfloat16, kVector> dx_vec;
        pack(dx_vec, dx_values);
        if (active) write<Store>(dx_row + first_col + step * kStride, dx_vec);
      }
    }

    parity ^= 1;
  }

  // Lanes that own the same columns of several rows add their sums.
  if (kThreadsPerRow < 32) {
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        #pragma unroll
        for (int offset = kThreadsPerRow; offset < 32; offset *= 2) {
          dweight_sum[step][i] += __shfl_xor_sync(0xffffffffu, dweight_sum[step][i], offset);
          dbias_sum[step][i] += __shfl_xor_sync(0xffffffffu, dbias_sum[step][i], offset);
        }
      }
    }
  }
  const int sums_row = kThreadsPerRow < 32 ? static_cast<int>(threadIdx.x / 32) : block_row;

  // Each row group of the block leaves its sums in shared memory.
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = row_thread + step * kThreadsPerRow;
    if ((kThreadsPerRow >= 32 || threadIdx.x % 32 < kThreadsPerRow) && (kEven || vector < kVectors)) {
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        group_sums[sums_row][0][i * kVectors + vector] = dweight_sum[step][i];
        group_sums[sums_row][1][i * kVectors + vector] = dbias_sum[step][i];
      }
    }
  }

  float* partial_row = partials + static_cast<long long>(blockIdx.x) * kTensors * kPitch;
  __syncthreads();
  // The sums of the row groups are added in a fixed order.
  for (int cell = threadIdx.x; cell < kCols; cell += kThreads) {
    float dweight_total = group_sums[0][0][cell];
    #pragma unroll
    for (int group = 1; group < kGroups; ++group) {
      dweight_total += group_sums[group][0][cell];
    }
    partial_row[cell] = dweight_total;
    float dbias_total = group_sums[0][1][cell];
    #pragma unroll
    for (int group = 1; group < kGroups; ++group) {
      dbias_total += group_sums[group][1][cell];
    }
    partial_row[kPitch + cell] = dbias_total;
  }

  Chain::at_end();
}

// Adds the partial rows that a kernel's blocks left, cell by cell and always in the same order.
template <class Config>
__global__ void __launch_bounds__(512)
layernorm_bwd_bf16_finish(
    bfloat16* __restrict__ dweight,
    bfloat16* __restrict__ dbias,
    Input<Config, float> partials,
    int blocks) {
  using Chain = typename Config::Chain;
  constexpr int kCols = Config::kCols, kPitch = (kCols + 31) / 32 * 32, kSumVector = Config::kSumVector,
      kSumVectors = kCols / kSumVector, kCluster = Config::kCluster, kThreads = 512, kTensors = 2,
      kCells = Config::kCells;
  __shared__ float warp_sums[kThreads / 32][kCells];

  const int partial_rows = blocks / kCluster;
  const int tensor = blockIdx.x % kTensors;
  const int cell = blockIdx.x / kTensors * kCells + threadIdx.x % kCells;

  Chain::at_start();
  Chain::wait_for_partner();

  add_partial_rows<kThreads, kCells, kTensors, kPitch>(partials, partial_rows, tensor, cell, warp_sums);
  const int column = kSumVector == 1 ? cell : cell % kSumVectors * kSumVector + cell / kSumVectors;
  if (threadIdx.x < kCells && cell < kCols) {
    const float total = total_of_warps<kThreads / 32>(warp_sums, threadIdx.x);
    if (tensor == 0) {
      write_element(dweight, column, total);
    }
    if (tensor == 1) {
      write_element(dbias, column, total);
    }
  }
}

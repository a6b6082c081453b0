// Waits for that many threads, whole warps, at barrier `id` of 1 to 15.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

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

// This block's rank in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of a cluster arrive, then wait. What a thread wrote before it arrived, the others see after
// they have waited.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// As above, where a thread has written nothing that others wait for: no fence.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where block `rank` of the cluster has the shared variable `own`.
template <typename T>
__device__ __forceinline__ unsigned cluster_address(const T* own, unsigned rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank));
  return remote;
}

// Reads what block `rank` of the cluster has in the shared variable `own`: a float, or four of them at a time.
__device__ __forceinline__ void cluster_load(float (&value)[1], const float* own, unsigned rank) {
  const unsigned remote = cluster_address(own, rank);
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value[0]) : "r"(remote) : "memory");
}
__device__ __forceinline__ void cluster_load(float (&values)[4], const float* own, unsigned rank) {
  const unsigned remote = cluster_address(own, rank);
  asm volatile("ld.shared::cluster.v4.f32 { %0, %1, %2, %3 }, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3]) : "r"(remote) : "memory");
}

// Shared memory whose size the launch decides.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return bytes;
}

// Programmatic dependent launch: wait until the kernel before this one has ended and its writes are visible.
__device__ __forceinline__ void dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Programmatic dependent launch: let the kernel behind this one start as soon as blocks leave room.
__device__ __forceinline__ void dependency_trigger() {
  asm volatile("griddepcontrol.launch_dependents;");
}

// The compiler no longer knows where the bits come from.
__device__ __forceinline__ void opaque(unsigned& bits) { asm volatile("" : "+r"(bits)); }

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

// A barrier for the kWarps warps of row number `slot` of a block. Only wide rows have one each: a barrier whose number
// the hardware learns at run time is a slow one, and narrow rows share that of the block.
template <int kWarps>
__device__ __forceinline__ void rows_meet(int slot) {
  if constexpr (kWarps >= 8) named_barrier(1 + slot, kWarps * 32);
  else __syncthreads();
}

// The largest power of two up to n, and up to a warp: how many lanes combine n states.
__host__ __device__ constexpr int lanes_for(int n) { return n < 2 ? 1 : n >= 32 ? 32 : 2 * lanes_for(n / 2); }

// What this lane combines of kStates states: lanes_for(kStates) lanes take turns at them.
template <int kStates, typename State>
__device__ __forceinline__ State share_of_slots(const State* slots) {
  constexpr int kLanes = lanes_for(kStates);
  const int own = threadIdx.x % kLanes;
  State total = slots[own];
  #pragma unroll
  for (int i = kLanes; i < kStates; i += kLanes) {
    if (kStates % kLanes == 0 || own + i < kStates) total = State::combine(total, slots[own + i]);
  }
  return total;
}

// A team: the threads that share a row. They are neighbours in a block, which has kRowsPerBlock rows side by side.
template <int kThreadsPerRow, int kRowsPerBlock>
struct Threads {
  enum : int { kSize = kThreadsPerRow, kRows = kRowsPerBlock };
  // This thread's number in its team, and its team's in the block; which tile of rows is the block's.
  static __device__ __forceinline__ int lane() { return kRows == 1 ? threadIdx.x : threadIdx.x % kThreadsPerRow; }
  static __device__ __forceinline__ int slot() { return kRows == 1 ? 0 : threadIdx.x / kThreadsPerRow; }
  static __device__ __forceinline__ unsigned tile() { return blockIdx.x; }
  // The team's row of the tile that starts at row `first`; idle teams take the last row.
  static __device__ __forceinline__ int row(int first, int rows) {
    return kRows == 1 ? first : min(first + slot(), rows - 1);
  }
  // Blocks that are a team say that they have started, and wait for each other before they combine.
  static __device__ __forceinline__ void announce() {}
  static __device__ __forceinline__ void meet() {}
};

// Several warps are a team, and a block has several teams. They combine as the warps of a Block do.
template <int kThreadsPerRow, int kRowsPerBlock, class Named = WholeWarp>
struct Beside : Threads<kThreadsPerRow, kRowsPerBlock> {
  enum : int { kWarps = kThreadsPerRow / 32 };
  template <typename State> using Slots = State[kRowsPerBlock][kWarps];
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, State (&slots)[kRowsPerBlock][kWarps]) {
    const int slot = threadIdx.x / kThreadsPerRow;
    State* own = slots[slot];
    s = reduce_lanes<32, Named>(s);
    if (threadIdx.x % 32 == 0) own[threadIdx.x / 32 % kWarps] = s;
    rows_meet<kWarps>(slot);
    return reduce_lanes<lanes_for(kWarps), Named>(share_of_slots<kWarps>(own));
  }
};

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

// The blocks of a cluster have left kTensors rows of kPitch sums each in `column_sums`, where the others read them.
// Each block adds a stretch of the kCols columns, block by block in the order of ranks and kWidth columns a thread at a
// time, and writes it to the cluster's partial row.
template <int kThreads, int kCluster, int kTensors, int kCols, int kPitch, int kWidth>
__device__ __forceinline__ void add_over_cluster(const float* column_sums, float* partial_row) {
  constexpr int kStretch = (kCols + kWidth * kCluster - 1) / (kWidth * kCluster) * kWidth;  // columns of a block
  cluster_arrive();
  cluster_wait();
  const int stretch = static_cast<int>(cluster_rank()) * kStretch;
  const int end = min(stretch + kStretch, kCols);
  for (int cell = stretch + kWidth * threadIdx.x; cell < end; cell += kWidth * kThreads) {
    float parts[kTensors][kCluster][kWidth];
    #pragma unroll
    for (int rank = 0; rank < kCluster; ++rank) {
      #pragma unroll
      for (int tensor = 0; tensor < kTensors; ++tensor) {
        cluster_load(parts[tensor][rank], column_sums + tensor * kPitch + cell, rank);
      }
    }
    #pragma unroll
    for (int rank = 1; rank < kCluster; ++rank) {
      #pragma unroll
      for (int tensor = 0; tensor < kTensors; ++tensor) {
        #pragma unroll
        for (int i = 0; i < kWidth; ++i) parts[tensor][0][i] += parts[tensor][rank][i];
      }
    }
    #pragma unroll
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      const float(&total)[kWidth] = parts[tensor][0];
      float* to = partial_row + tensor * kPitch + cell;
      if constexpr (kWidth == 4) {
        *reinterpret_cast<float4*>(to) = make_float4(total[0], total[1], total[2], total[3]);
      } else {
        *to = total[0];
      }
    }
  }
  cluster_arrive();
  cluster_wait();  // a block may end only once nobody reads its sums any more
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

// Starts while the kernel in front still runs (programmatic dependent launch).
struct Early : InOrder {
  template <typename T> using Pointer = const T*;
  static __device__ __forceinline__ void wait() { dependency_wait(); }
  static __device__ __forceinline__ void wait_for_partner() { dependency_wait(); }
};

// As Early; the next kernel may start as the blocks of this one end.
struct EarlyAtEnd : Early {
  static __device__ __forceinline__ void at_end() { dependency_trigger(); }
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

// Parameters are read in their turn.
struct InTurn {
  template <typename T>
  static __device__ __forceinline__ void to_l2(const T*, int) {}
};

// What a Config names but where it says otherwise. Its sizes are counted in elements, threads, rows or blocks.
struct Plain {
  using Load = Default;   // how rows are read
  using Store = Default;  // how rows are written
  using Chain = InOrder;  // how a kernel overlaps with its neighbours in the stream
  using Params = InTurn;  // whether column parameters are asked for ahead of the rows
  enum : int { kCluster = 1 };  // blocks that share a row, or add their column sums
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

// kCluster       blocks that add their column sums; or blocks that fill a partial row together
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
// kSumWidth      columns a thread adds at a time
// kSumVector     columns whose sums lie kSumVectors cells apart
// kCells         sums that a block adds

struct Cols1024_1ae0 : Plain { using Team = Beside<64, 4>; using Chain = EarlyAtEnd;
  enum : int { kCols = 1024, kThreads = 256, kCluster = 2, kVector = 8, kEarlyParams = 1, kPackedParams = 0, kAhead = 1,
      kGroups = 4, kSumVector = 8, kCells = 8 };
};

struct Look1_d77f {  // state of look 1: sum(dxhat * xhat)
  float dxhat_xhat_sum;
  static __device__ __forceinline__ Look1_d77f combine(const Look1_d77f& a, const Look1_d77f& b) {
    return {a.dxhat_xhat_sum + b.dxhat_xhat_sum};
  }
  static __device__ __forceinline__ Look1_d77f shuffle_xor(const Look1_d77f& s, int offset, unsigned mask) {
    return {__shfl_xor_sync(mask, s.dxhat_xhat_sum, offset)};
  }
};

// rmsnorm backward: a team of threads owns a row, the blocks of a cluster share their column sums; each row is read
// once.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
rmsnorm_bwd_bf16_team_per_row_a20a(
    bfloat16* __restrict__ dx,
    bfloat16* __restrict__ dweight,
    Input<Config, bfloat16> dy,
    Input<Config, bfloat16> x,
    Input<Config, bfloat16> weight,
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
  constexpr int kCols = Config::kCols, kThreads = Config::kThreads, kThreadsPerRow = Team::kSize,
      kRowsPerBlock = Team::kRows, kCluster = Config::kCluster, kVector = Config::kVector,
      kStride = kThreadsPerRow * kVector, kRunningSums = kVector < 4 ? kVector : 4;
  constexpr bool kEarlyParams = Config::kEarlyParams, kPackedParams = Config::kPackedParams;
  constexpr int kVectors = kCols / kVector, kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow;
  constexpr bool kEven = kVectors % kThreadsPerRow == 0, kAhead = Config::kAhead;
  constexpr int kPitch = (kCols + 31) / 32 * 32, kTensors = 1, kGroups = Config::kGroups,
      kSumWidth = kCols % 4 == 0 ? 4 : 1;
  __shared__ typename Team::template Slots<Look1_d77f> look1_slots[2];

  const int lane = Team::lane();
  const int own = lane * kVector;  // the column of a thread's first vector
  const int slot = Team::slot();  // this thread's row within the block
  int parity = 0;

  Chain::at_start();
  Chain::wait();  // nothing before it depends on the kernels in front of this one

  Vec<bfloat16, kVector> weight_held[kSteps];
  if (kEarlyParams) {
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = lane + step * kThreadsPerRow;
      if (kEven || vector < kVectors) {
        weight_held[step] = read<kVector>(weight + own + step * kStride);
      }
    }
  }

  // This thread's sums over its rows, one for each of its columns.
  float dweight_sum[kSteps][kVector] = {};
  float (*group_sums)[kTensors][kPitch] = reinterpret_cast<float (*)[kTensors][kPitch]>(dynamic_shared());

  Vec<bfloat16, kVector> dy_next[kSteps];
  Vec<bfloat16, kVector> x_next[kSteps];
  float rstd_next;
  // Starts the loads of a row.
  const auto fetch = [&](int row) {
    const bfloat16* dy_row = dy + static_cast<long long>(row) * dy_pitch;
    const bfloat16* x_row = x + static_cast<long long>(row) * x_pitch;
    rstd_next = rstd[row];

    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = lane + step * kThreadsPerRow;
      if (kEven || vector < kVectors) {
        dy_next[step] = read<kVector, Load>(dy_row + own + step * kStride);
        x_next[step] = read<kVector, Load>(x_row + own + step * kStride);
      }
    }
  };
  if (kAhead && blockIdx.x * kRowsPerBlock < rows) fetch(Team::row(blockIdx.x * kRowsPerBlock, rows));

  for (int first_row = blockIdx.x * kRowsPerBlock; first_row < rows; first_row += gridDim.x * kRowsPerBlock) {
    const int row = first_row + slot;
    const bool active = kRowsPerBlock == 1 || row < rows;  // idle rows recompute the last row and store nothing
    const int valid_row = active ? row : rows - 1;
    bfloat16* dx_row = dx + static_cast<long long>(valid_row) * dx_pitch;
    if (!kAhead) fetch(valid_row);
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

    Look1_d77f look1 = {0.0f};
    // short chains of additions: few roundings, and none waits for another
    float look1_dxhat_xhat_sum[kRunningSums] = {};

    // Look 1: sum(dxhat * xhat)
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = lane + step * kThreadsPerRow;
      if (kEven || vector < kVectors) {
        if (!kEarlyParams) weight_held[step] = read<kVector>(weight + own + step * kStride);
        #pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float dy_i = element(dy_held[step], i);
          const float x_i = element(x_held[step], i);
          const float weight_i = element(weight_held[step], i);
          const float dxhat_i = dy_i * weight_i;
          const float xhat_i = x_i * row_rstd;
          look1_dxhat_xhat_sum[i % kRunningSums] += dxhat_i * xhat_i;
        }
      }
    }

    look1.dxhat_xhat_sum = sum_in_pairs(look1_dxhat_xhat_sum);
    look1 = Team::reduce(look1, look1_slots[parity]);
    const float row_dxhat_xhat_mean = look1.dxhat_xhat_sum / kCols;

    // Last look: the outputs
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = lane + step * kThreadsPerRow;
      if (kEven || vector < kVectors) {
        if (!kEarlyParams) weight_held[step] = read<kVector>(weight + own + step * kStride);
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
        if (active) write<Store>(dx_row + own + step * kStride, dx_vec);
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
        }
      }
    }
  }

  // Each row group of the block leaves its sums in shared memory.
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    if ((kThreadsPerRow >= 32 || threadIdx.x % 32 < kThreadsPerRow) && (kEven || vector < kVectors)) {
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        group_sums[kThreadsPerRow < 32 ? static_cast<int>(threadIdx.x / 32) : slot][0][i * kVectors + vector] =
            dweight_sum[step][i];
      }
    }
  }

  __syncthreads();
  // The sums of the row groups are added in a fixed order.
  for (int cell = threadIdx.x; cell < kCols; cell += kThreads) {
    float dweight_total = group_sums[0][0][cell];
    #pragma unroll
    for (int group = 1; group < kGroups; ++group) {
      dweight_total += group_sums[group][0][cell];
    }
    group_sums[0][0][cell] = dweight_total;
  }

  float* partial_row = partials + static_cast<long long>(blockIdx.x / kCluster) * kTensors * kPitch;
  add_over_cluster<kThreads, kCluster, kTensors, kCols, kPitch, kSumWidth>(&group_sums[0][0][0], partial_row);

  Chain::at_end();
}

// Adds the partial rows that a kernel's blocks left, cell by cell and always in the same order.
template <class Config>
__global__ void __launch_bounds__(512)
rmsnorm_bwd_bf16_finish_7a1a(
    bfloat16* __restrict__ dweight,
    Input<Config, float> partials,
    int blocks) {
  using Chain = typename Config::Chain;
  constexpr int kCols = Config::kCols, kPitch = (kCols + 31) / 32 * 32, kSumVector = Config::kSumVector,
      kSumVectors = kCols / kSumVector, kCluster = Config::kCluster, kThreads = 512, kTensors = 1,
      kCells = Config::kCells;
  __shared__ float warp_sums[kThreads / 32][kCells];

  const int partial_rows = blocks / kCluster;
  const int cell = blockIdx.x * kCells + threadIdx.x % kCells;

  Chain::at_start();
  Chain::wait_for_partner();

  add_partial_rows<kThreads, kCells, kTensors, kPitch>(partials, partial_rows, 0, cell, warp_sums);
  const int column = kSumVector == 1 ? cell : cell % kSumVectors * kSumVector + cell / kSumVectors;
  if (threadIdx.x < kCells && cell < kCols) {
    const float total = total_of_warps<kThreads / 32>(warp_sums, threadIdx.x);
    write_element(dweight, column, total);
  }
}

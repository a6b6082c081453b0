// Shared memory whose size the launch decides.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return bytes;
}

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

// A block is a team. Warps first, then every warp combines the warps' states redundantly: one barrier, no broadcast.
template <int kThreadsPerRow, class Named = WholeWarp>
struct Block : Threads<kThreadsPerRow, 1> {
  enum : int { kWarps = kThreadsPerRow / 32 };
  template <typename State> using Slots = State[kWarps];
  template <typename State>
  static __device__ __forceinline__ State reduce(State s, State (&slots)[kWarps]) {
    s = reduce_lanes<32, Named>(s);
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32 % kWarps] = s;
    __syncthreads();
    return reduce_lanes<lanes_for(kWarps), Named>(share_of_slots<kWarps>(slots));
  }
};

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

// Whether this block is the last of the grid to take a ticket. What the others wrote before they took theirs is seen.
// `is_last` is a variable in shared memory.
__device__ __forceinline__ bool takes_last_ticket(unsigned* ticket, bool& is_last) {
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(ticket, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (is_last) __threadfence();
  return is_last;
}

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

// Partial rows of kRowSums float32 cells each: tile by tile of kTileSums cells, the last block to arrive adds all rows
// in a fixed order, hands each sum to `finish(cell, sum)`, and leaves the tickets ready for the next call. Blocks start
// at different tiles, so that several of them finish. `is_last` and `scratch`, four floats a thread, lie in shared
// memory.
template <int kThreads, int kTiles, int kTileSums, int kRowSums, int kTicketWords, typename Finish>
__device__ __forceinline__ void finish_last_tiles(
    unsigned* tickets, bool& is_last, const float* partials, int partial_rows, float* scratch, const Finish& finish) {
  constexpr int kInFlight = 8;  // loads of a thread that travel at once
  __threadfence();
  for (int visit = 0; visit < kTiles; ++visit) {
    const int tile = (blockIdx.x + visit) % kTiles;
    if (!takes_last_ticket(tickets + tile * kTicketWords, is_last)) continue;
    if (threadIdx.x == 0) tickets[tile * kTicketWords] = 0;
    for (int first = tile * kTileSums; first < min((tile + 1) * kTileSums, kRowSums); first += 128) {
      // Each warp adds every (kThreads / 32)-th partial row, a lane four cells of it ...
      const int own = first + threadIdx.x % 32 * 4;
      const int rows = own < kRowSums ? partial_rows : 0;
      float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int next = threadIdx.x / 32; next < rows; next += kInFlight * (kThreads / 32)) {
        float4 parts[kInFlight];
        #pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const int row = next + i * (kThreads / 32);
          const float* from = partials + static_cast<long long>(row) * kRowSums + own;
          parts[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if (row < rows) parts[i] = __ldcg(reinterpret_cast<const float4*>(from));
        }
        #pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          sums.x += parts[i].x;
          sums.y += parts[i].y;
          sums.z += parts[i].z;
          sums.w += parts[i].w;
        }
      }
      reinterpret_cast<float4*>(scratch)[threadIdx.x] = sums;
      __syncthreads();
      // ... and the warps' sums are added.
      for (int i = threadIdx.x; i < 128; i += kThreads) {
        const float total = total_of_warps<kThreads / 32>(reinterpret_cast<const float (*)[128]>(scratch), i);
        if (first + i < kRowSums) finish(first + i, total);
      }
      __syncthreads();
    }
  }
}

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

// elements[at] = value, rounded as it is stored.
template <typename T>
__device__ __forceinline__ void write_element(T* elements, int at, float value) {
  Vec<T, 1> vec = {};
  const float values[1] = {value};
  pack(vec, values);
  write(elements + at, vec);
}

// kVector       elements per access
// kStride       columns from one vector of a thread to its next
// kRunningSums  running sums that a vector adds to
// kEarlyParams  column parameters wait in registers, or are read where they are used
// kVectors      vectors of a row
// kSteps        vectors a thread owns
// kEven         all threads own kSteps of them
// kAhead        the next row is loaded while the present one is computed
// kPitch        columns of a row of float32 sums, padded
// kTensors      tensors that are summed over rows
// kTileSums     cells of a tile that one block adds
// kTiles        tiles of a partial row
// kTicketWords  from one tile's ticket to the next

struct Cols768 : Plain { using Team = Block<64>;
  enum : int { kCols = 768, kThreads = 64, kVector = 4, kEarlyParams = 0, kAhead = 0, kTileSums = 128, kTiles = 6 };
};

struct Pass1 {  // state of pass 1: sum(dxhat * xhat)
  float dxhat_xhat_sum;
  static __device__ __forceinline__ Pass1 combine(const Pass1& a, const Pass1& b) {
    return {a.dxhat_xhat_sum + b.dxhat_xhat_sum};
  }
  static __device__ __forceinline__ Pass1 shuffle_xor(const Pass1& s, int offset, unsigned mask) {
    return {__shfl_xor_sync(mask, s.dxhat_xhat_sum, offset)};
  }
};

// rmsnorm backward: a team of threads owns a row; each row is read once.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
rmsnorm_bwd_f32_team_per_row(
    float* __restrict__ dx,
    float* __restrict__ dweight,
    Input<Config, float> dy,
    Input<Config, float> x,
    Input<Config, float> weight,
    Input<Config, float> rstd,
    long long dx_pitch,
    long long dy_pitch,
    long long x_pitch,
    int rows,
    unsigned* tickets,
    float* partials) {
  using Team = typename Config::Team;
  using Load = typename Config::Load;
  using Store = typename Config::Store;
  using Chain = typename Config::Chain;
  using Division = typename Config::Division;
  constexpr int kCols = Config::kCols, kThreads = Config::kThreads, kThreadsPerRow = Team::kSize,
      kRowsPerBlock = Team::kRows, kVector = Config::kVector, kStride = kThreadsPerRow * kVector,
      kRunningSums = kVector < 4 ? kVector : 4;
  constexpr bool kEarlyParams = Config::kEarlyParams;
  constexpr int kVectors = kCols / kVector, kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow;
  constexpr bool kEven = kVectors % kThreadsPerRow == 0, kAhead = Config::kAhead;
  constexpr int kPitch = (kCols + 31) / 32 * 32, kTensors = 1, kTileSums = Config::kTileSums, kTiles = Config::kTiles,
      kTicketWords = 32;
  __shared__ typename Team::template Slots<Pass1> pass1_slots[2];

  const int row_thread = Team::row_thread();
  const int first_col = row_thread * kVector;  // of this thread's first vector
  const int block_row = Team::block_row();  // this thread's row within the block
  int parity = 0;

  Chain::at_start();
  Chain::wait();  // what follows may read what earlier kernels in the stream wrote

  Vec<float, kVector> weight_held[kSteps];
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

  Vec<float, kVector> dy_next[kSteps];
  Vec<float, kVector> x_next[kSteps];
  float rstd_next;
  // Prefetches a row into registers.
  const auto fetch = [&](int row) {
    const float* dy_row = dy + row * dy_pitch;
    const float* x_row = x + row * x_pitch;
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
    float* dx_row = dx + valid_row * dx_pitch;
    if (!kAhead) fetch(valid_row);
    const float row_rstd = rstd_next;

    Vec<float, kVector> dy_held[kSteps];
    Vec<float, kVector> x_held[kSteps];

    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      dy_held[step] = dy_next[step];
      x_held[step] = x_next[step];
    }

    const unsigned next_row = first_row + gridDim.x * kRowsPerBlock;
    if (kAhead && next_row < rows) fetch(Team::row(next_row, rows));

    float pass1_dxhat_xhat_sum[kRunningSums] = {};  // several: shorter chains of additions, fewer roundings each

    // Pass 1: sum(dxhat * xhat)
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
          const float xhat_i = x_i * row_rstd;
          pass1_dxhat_xhat_sum[i % kRunningSums] += dxhat_i * xhat_i;
        }
      }
    }

    Pass1 pass1 = {sum_in_pairs(pass1_dxhat_xhat_sum)};
    pass1 = Team::reduce(pass1, pass1_slots[parity]);
    const float row_dxhat_xhat_mean = Division::of(pass1.dxhat_xhat_sum, kCols);

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
          const float xhat_i = x_i * row_rstd;
          dx_values[i] = (dxhat_i - xhat_i * row_dxhat_xhat_mean) * row_rstd;
          if (active) dweight_sum[step][i] += dy_i * xhat_i;
        }
        Vec<float, kVector> dx_vec;
        pack(dx_vec, dx_values);
        if (active) write<Store>(dx_row + first_col + step * kStride, dx_vec);
      }
    }

    parity ^= 1;
  }

  float* partial_row = partials + static_cast<long long>(blockIdx.x) * kTensors * kPitch;

  // The block hands one sum per column on.
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = row_thread + step * kThreadsPerRow;
    if (kEven || vector < kVectors) {
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        partial_row[i * kVectors + vector] = dweight_sum[step][i];
      }
    }
  }

  // The last block to arrive at a tile of columns adds the partial rows there.
  __shared__ bool is_last;
  float* scratch = reinterpret_cast<float*>(dynamic_shared());
  const auto write_total = [&](int sum, float total) {
    const int cell = sum % kPitch;
    const int column = cell % kVectors * kVector + cell / kVectors;
    if (cell >= kCols) return;
    write_element(dweight, column, total);
  };
  finish_last_tiles<kThreads, kTiles, kTileSums, kTensors * kPitch, kTicketWords>(tickets, is_last, partials,
      static_cast<int>(gridDim.x), scratch, write_total);

  Chain::at_end();
}

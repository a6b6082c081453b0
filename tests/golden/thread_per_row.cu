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

// kVector       elements per access
// kStride       columns from one vector of a thread to its next
// kRunningSums  running sums that a vector adds to
// kUnroll       steps that a loop does in a trip
// kVectors      vectors of a row
// kSteps        vectors a thread owns
// kEven         all threads own kSteps of them

struct Cols8 : Plain { using Team = Threads<1, 128>;
  enum : int { kCols = 8, kThreads = 128, kVector = 4, kUnroll = 1 };
};

struct Pass1 {  // state of pass 1: sum(x)
  float total;
  static __device__ __forceinline__ Pass1 combine(const Pass1& a, const Pass1& b) {
    return {a.total + b.total};
  }
};

// row_sum forward: a team of threads owns a row; each row is read once.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
row_sum_fwd_f32_team_per_row(
    float* __restrict__ total,
    Input<Config, float> x,
    long long x_pitch,
    int rows) {
  using Team = typename Config::Team;
  using Chain = typename Config::Chain;
  using Order = typename Config::Order;
  constexpr int kCols = Config::kCols, kThreadsPerRow = Team::kSize, kRowsPerBlock = Team::kRows,
      kVector = Config::kVector, kStride = kThreadsPerRow * kVector, kRunningSums = kVector < 4 ? kVector : 4,
      kUnroll = Config::kUnroll, kVectors = kCols / kVector, kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow;
  constexpr bool kEven = kVectors % kThreadsPerRow == 0;

  const int row_thread = Team::row_thread();
  const int first_col = row_thread * kVector;  // of this thread's first vector
  const int block_row = Team::block_row();  // this thread's row within the block
  const int row = Order::tile(Team::tile(), (rows - 1) / kRowsPerBlock) * kRowsPerBlock + block_row;

  const bool active = kRowsPerBlock == 1 || row < rows;  // threads past the last row redo it and store nothing
  const int valid_row = active ? row : rows - 1;
  const float* x_row = x + valid_row * x_pitch;

  Chain::at_start();
  Chain::wait();  // what follows may read what earlier kernels in the stream wrote

  float pass1_total[kRunningSums] = {};  // several: shorter chains of additions, fewer roundings each

  // Pass 1: sum(x)
  #pragma unroll kUnroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = row_thread + step * kThreadsPerRow;
    if (kEven || vector < kVectors) {
      const Vec<float, kVector> x_vec = read<kVector>(x_row + first_col + step * kStride);
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float x_i = element(x_vec, i);
        pass1_total[i % kRunningSums] += x_i;
      }
    }
  }

  Pass1 pass1 = {sum_in_pairs(pass1_total)};

  if (row_thread == 0 && active) {
    total[row] = pass1.total;
  }

  Chain::at_end();
}

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

// IEEE 754-2019 maximum and minimum: unlike fmaxf and fminf they return NaN when either operand is NaN.
__device__ __forceinline__ float maximum(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float value;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
#else
  return a > b || a != a ? a : b;
#endif
}

__device__ __forceinline__ float minimum(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float value;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
#else
  return a < b || a != a ? a : b;
#endif
}

// Leaves no line in L1.
struct NoAllocate {
  template <int kBytes>
  static __device__ __forceinline__ void load(const void* address, unsigned* bits) {
    if constexpr (kBytes == 16) {
      asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3]) : "l"(address));
    } else if constexpr (kBytes == 8) {
      asm("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
          : "=r"(bits[0]), "=r"(bits[1]) : "l"(address));
    } else if constexpr (kBytes == 4) {
      asm("ld.global.L1::no_allocate.u32 %0, [%1];"
          : "=r"(bits[0]) : "l"(address));
    } else {
      unsigned short half;
      if constexpr (kBytes == 2) asm("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(half) : "l"(address));
      else asm("ld.global.L1::no_allocate.u8 %0, [%1];" : "=h"(half) : "l"(address));
      bits[0] = half;
    }
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

// kVector       elements per access
// kStride       columns from one vector of a thread to its next
// kRunningSums  running sums that a vector adds to
// kUnroll       steps that a loop does in a trip

struct AnyCols : Plain { using Team = Block<128>; using Load = NoAllocate;
  enum : int { kThreads = 128, kVector = 8, kUnroll = 1 };
};

struct Pass1 {  // state of pass 1: online_softmax(x)
  float row_max, row_sum;
  static __device__ __forceinline__ Pass1 combine(const Pass1& a, const Pass1& b) {
    const float new_max = maximum(a.row_max, b.row_max);
    return {new_max, expf(a.row_max - new_max) * a.row_sum + expf(b.row_max - new_max) * b.row_sum};
  }
  static __device__ __forceinline__ Pass1 shuffle_xor(const Pass1& s, int offset, unsigned mask) {
    return {__shfl_xor_sync(mask, s.row_max, offset), __shfl_xor_sync(mask, s.row_sum, offset)};
  }
};

// log_softmax forward, any number of columns: a team of threads owns a row; each row is read twice.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
log_softmax_fwd_bf16_any_cols_team_per_row(
    bfloat16* __restrict__ y,
    Input<Config, bfloat16> x,
    long long y_pitch,
    long long x_pitch,
    int rows,
    int cols) {
  using Team = typename Config::Team;
  using Load = typename Config::Load;
  using Store = typename Config::Store;
  using Chain = typename Config::Chain;
  using Order = typename Config::Order;
  constexpr int kThreadsPerRow = Team::kSize, kVector = Config::kVector, kStride = kThreadsPerRow * kVector,
      kRunningSums = kVector < 4 ? kVector : 4, kUnroll = Config::kUnroll;
  __shared__ typename Team::template Slots<Pass1> pass1_slots;

  const int row_thread = Team::row_thread();
  const int row = Order::tile(blockIdx.x, rows - 1);
  const int steps = (cols / kVector + kThreadsPerRow - 1) / kThreadsPerRow;

  bfloat16* y_row = y + row * y_pitch;
  const bfloat16* x_row = x + row * x_pitch;
  // Peeled: elements in front of a row's first aligned unit and behind its last vector have a thread each.
  const int shift = static_cast<int>(reinterpret_cast<unsigned long long>(x_row) / sizeof(bfloat16) % kVector);
  const int head = (kVector - shift) % kVector;
  const int first_col = head + row_thread * kVector;
  const int vectors = (cols - head) / kVector;
  const int edge = row_thread < head ? row_thread : row_thread + vectors * kVector;
  const bool has_edge = edge < cols;

  Chain::at_start();
  Chain::wait();  // what follows may read what earlier kernels in the stream wrote

  Team::announce();

  Pass1 pass1 = {-3.402823466e+38f, 0.0f};  // the lowest finite number: -inf - -inf is NaN

  // Pass 1: online_softmax(x)
  #pragma unroll kUnroll
  for (int step = 0; step < steps; ++step) {
    const int vector = row_thread + step * kThreadsPerRow;
    if (vector < vectors) {
      const Vec<bfloat16, kVector> x_vec = read<kVector>(x_row + first_col + step * kStride);
      float new_max = pass1.row_max;
      float sums[kRunningSums] = {};
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float x_i = element(x_vec, i);
        new_max = maximum(new_max, x_i);
      }
      pass1.row_sum = expf(pass1.row_max - new_max) * pass1.row_sum;
      pass1.row_max = new_max;
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float x_i = element(x_vec, i);
        sums[i % kRunningSums] += expf(x_i - pass1.row_max);
      }
      pass1.row_sum += sum_in_pairs(sums);
    }
  }
  if (has_edge) {
    const Vec<bfloat16, 1> x_vec = read<1>(x_row + edge);
    const float x_i = element(x_vec, 0);
    const float new_max = maximum(pass1.row_max, x_i);
    pass1.row_sum = expf(pass1.row_max - new_max) * pass1.row_sum + expf(x_i - new_max);
    pass1.row_max = new_max;
  }

  Team::meet();
  pass1 = Team::reduce(pass1, pass1_slots);

  // Last pass: the outputs
  #pragma unroll kUnroll
  for (int step = 0; step < steps; ++step) {
    const int vector = row_thread + step * kThreadsPerRow;
    if (vector < vectors) {
      const Vec<bfloat16, kVector> x_vec = read<kVector, Load>(x_row + first_col + step * kStride);
      float y_values[kVector];
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float x_i = element(x_vec, i);
        const float y_part_i = x_i - pass1.row_max;
        y_values[i] = y_part_i - logf(pass1.row_sum);
      }
      Vec<bfloat16, kVector> y_vec;
      pack(y_vec, y_values);
      write<Store>(y_row + first_col + step * kStride, y_vec);
    }
  }
  if (has_edge) {
    const Vec<bfloat16, 1> x_vec = read<1, Load>(x_row + edge);
    float y_values[1];
    const float x_i = element(x_vec, 0);
    const float y_part_i = x_i - pass1.row_max;
    y_values[0] = y_part_i - logf(pass1.row_sum);
    Vec<bfloat16, 1> y_vec;
    pack(y_vec, y_values);
    write<Store>(y_row + edge, y_vec);
  }

  Chain::at_end();
}

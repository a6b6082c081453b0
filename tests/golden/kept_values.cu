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

// Hides from the compiler how the value was found: it would find it again in every look rather than keep it.
__device__ __forceinline__ float computed_once(float value) {
  asm volatile("" : "+f"(value));
  return value;
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

// Elements [first, first + N) of an array of `count`, whatever the alignment of their address: the aligned words
// around them, moved into place. `inside`: those words are known to lie within the array.
template <int N, typename T>
__device__ __forceinline__ Vec<T, N> read_window(const T* elements, int first, int count, bool inside) {
  if constexpr (N == 1) {
    return read<1>(elements + first);
  } else {
    constexpr int kSize = static_cast<int>(sizeof(T));
    constexpr int kWord = (N * kSize < 16 ? N * kSize : 16) / kSize;  // elements of a word
    constexpr int kRegisters = kWord * kSize / 4;
    constexpr int kWords = N / kWord + 1;
    const int shift = static_cast<int>(reinterpret_cast<unsigned long long>(elements + first) / kSize % kWord);
    Vec<T, N> vec = {};
    if (!inside && (first < shift || first - shift + kWords * kWord > count)) {
      #pragma unroll
      for (int i = 0; i < N; ++i) {
        const unsigned bits = *reinterpret_cast<const Word<kSize>*>(elements + first + i);
        if (kSize == 4) vec.bits[i] = bits;
        else vec.bits[i * kSize / 4] |= bits << i * kSize % 4 * 8;
      }
      return vec;
    }
    unsigned bits[kWords * kRegisters];
    #pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const Vec<T, kWord> part = read<kWord>(elements + first - shift + word * kWord);
      #pragma unroll
      for (int i = 0; i < kRegisters; ++i) bits[word * kRegisters + i] = part.bits[i];
    }
    #pragma unroll
    for (int step = kRegisters / 2; step > 0; step /= 2) {
      const bool moves = (shift * kSize / 4 & step) != 0;  // a select: branches would put the bits in local memory
      #pragma unroll
      for (int i = 0; i + step < kWords * kRegisters; ++i) bits[i] = moves ? bits[i + step] : bits[i];
    }
    #pragma unroll
    for (int i = 0; i < Vec<T, N>::kRegisters; ++i) {
      vec.bits[i] = __funnelshift_r(bits[i], bits[i + 1], shift * kSize % 4 * 8);
    }
    return vec;
  }
}

// Hides from the compiler what the vector holds: it would convert kept parameters to floats once, for all rows, and
// keep those, in twice the registers.
template <int N, typename T>
__device__ __forceinline__ void stay_packed(Vec<T, N>& vec) {
  #pragma unroll
  for (int i = 0; i < Vec<T, N>::kRegisters; ++i) opaque(vec.bits[i]);
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

// kVector        elements per access
// kUnit          elements: a row's first vector starts at a multiple of them
// kStride        columns from one vector of a thread to its next
// kRunningSums   running sums that a vector adds to
// kEarlyParams   column parameters wait in registers, or are read where they are used
// kPackedParams  column parameters stay as they are stored while they wait in registers
// kFirstInside   first step whose windows of parameters begin within these
// kVectors       vectors of a row
// kSteps         vectors a thread owns
// kWholeSteps    steps in which each thread has a vector, and the row one more behind it, however the row is aligned
// kAhead         the next row is loaded while the present one is computed

struct Cols1023 : Plain { using Team = Lanes<32, 2>;
  enum : int { kCols = 1023, kThreads = 64, kVector = 4, kUnit = 16, kEarlyParams = 1, kPackedParams = 1,
      kFirstInside = 0, kAhead = 1 };
};

struct Pass1 {  // state of pass 1: sum(x)
  float x_sum;
  static __device__ __forceinline__ Pass1 combine(const Pass1& a, const Pass1& b) {
    return {a.x_sum + b.x_sum};
  }
  static __device__ __forceinline__ Pass1 shuffle_xor(const Pass1& s, int offset, unsigned mask) {
    return {__shfl_xor_sync(mask, s.x_sum, offset)};
  }
};

struct Pass2 {  // state of pass 2: sum(x_minus_mean**2)
  float var_sum;
  static __device__ __forceinline__ Pass2 combine(const Pass2& a, const Pass2& b) {
    return {a.var_sum + b.var_sum};
  }
  static __device__ __forceinline__ Pass2 shuffle_xor(const Pass2& s, int offset, unsigned mask) {
    return {__shfl_xor_sync(mask, s.var_sum, offset)};
  }
};

// layernorm forward: a team of threads owns a row; each row is read once.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
layernorm_fwd_bf16_team_per_row(
    bfloat16* __restrict__ y,
    float* __restrict__ mean,
    float* __restrict__ rstd,
    Input<Config, bfloat16> x,
    Input<Config, bfloat16> weight,
    Input<Config, bfloat16> bias,
    long long y_pitch,
    long long x_pitch,
    int rows,
    float eps) {
  using Team = typename Config::Team;
  using Load = typename Config::Load;
  using Store = typename Config::Store;
  using Chain = typename Config::Chain;
  using Division = typename Config::Division;
  constexpr int kCols = Config::kCols, kThreadsPerRow = Team::kSize, kRowsPerBlock = Team::kRows,
      kVector = Config::kVector, kUnit = Config::kUnit, kStride = kThreadsPerRow * kVector,
      kRunningSums = kVector < 4 ? kVector : 4;
  constexpr bool kEarlyParams = Config::kEarlyParams, kPackedParams = Config::kPackedParams;
  constexpr int kFirstInside = Config::kFirstInside, kVectors = kCols / kVector,
      kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow,
      kWholeSteps = ((kCols - kUnit + 1) / kVector - 1) / kThreadsPerRow;
  constexpr bool kAhead = Config::kAhead;
  __shared__ typename Team::template Slots<Pass1> pass1_slots;
  __shared__ typename Team::template Slots<Pass2> pass2_slots;

  const int row_thread = Team::row_thread();
  const int block_row = Team::block_row();  // this thread's row within the block
  // The grid's stride is a multiple of kUnit: all rows of this thread shift alike.
  const int own_row = min(static_cast<int>(blockIdx.x * kRowsPerBlock + block_row), rows - 1);
  // Peeled: elements in front of a row's first aligned unit and behind its last vector have a thread each.
  const int shift =
      static_cast<int>((reinterpret_cast<unsigned long long>(&x[0]) / sizeof(bfloat16) % kVector + own_row *
      x_pitch) % kUnit);
  const int head = (kUnit - shift) % kUnit;
  const int first_col = head + row_thread * kVector;
  const int vectors = (kCols - head) / kVector;
  const int edge = row_thread < head ? row_thread : row_thread + vectors * kVector;
  const bool has_edge = edge < kCols;

  Chain::at_start();
  Chain::wait();  // what follows may read what earlier kernels in the stream wrote

  Vec<bfloat16, kVector> weight_held[kSteps];
  Vec<bfloat16, 1> weight_edge = {};
  Vec<bfloat16, kVector> bias_held[kSteps];
  Vec<bfloat16, 1> bias_edge = {};
  if (kEarlyParams) {
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = row_thread + step * kThreadsPerRow;
      if (step < kWholeSteps || vector < vectors) {
        const int column = head + vector * kVector;
        weight_held[step] = read_window<kVector>(weight, column, kCols, step >= kFirstInside && step < kWholeSteps);
        bias_held[step] = read_window<kVector>(bias, column, kCols, step >= kFirstInside && step < kWholeSteps);
      }
    }
    if (has_edge) {
      weight_edge = read<1>(weight + edge);
      bias_edge = read<1>(bias + edge);
    }
  }

  Vec<bfloat16, kVector> x_next[kSteps];
  Vec<bfloat16, 1> x_edge_next = {};
  // Prefetches a row into registers.
  const auto fetch = [&](int first_row) {
    const int fetched_row = first_row + block_row < rows ? first_row + block_row : own_row;
    const bfloat16* x_row = x + fetched_row * x_pitch;

    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = row_thread + step * kThreadsPerRow;
      if (step < kWholeSteps || vector < vectors) {
        x_next[step] = read<kVector, Load>(x_row + first_col + step * kStride);
      }
    }
    if (has_edge) {
      x_edge_next = read<1, Load>(x_row + edge);
    }
  };
  if (kAhead && blockIdx.x * kRowsPerBlock < rows) fetch(blockIdx.x * kRowsPerBlock);

  for (int first_row = blockIdx.x * kRowsPerBlock; first_row < rows; first_row += gridDim.x * kRowsPerBlock) {
    const int row = first_row + block_row;
    // threads past the last row redo their thread's first row and store nothing
    const bool active = kRowsPerBlock == 1 || row < rows;
    const int valid_row = active ? row : own_row;
    bfloat16* y_row = y + valid_row * y_pitch;
    if (!kAhead) fetch(first_row);

    Vec<bfloat16, kVector> x_held[kSteps];
    Vec<bfloat16, 1> x_edge = {};
    float x_floats[kSteps][kVector];
    float x_minus_mean_floats[kSteps][kVector];
    float x_edge_float = 0.0f;
    float x_minus_mean_edge_float = 0.0f;

    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      x_held[step] = x_next[step];
    }

    x_edge = x_edge_next;
    const unsigned next_row = first_row + gridDim.x * kRowsPerBlock;
    if (kAhead && next_row < rows) fetch(next_row);
    if (kPackedParams) {
      #pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        stay_packed(weight_held[step]);
        stay_packed(bias_held[step]);
      }
    }

    float pass1_x_sum[kRunningSums] = {};  // several: shorter chains of additions, fewer roundings each

    // Pass 1: sum(x)
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = row_thread + step * kThreadsPerRow;
      if (step < kWholeSteps || vector < vectors) {
        #pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float x_i = computed_once(element(x_held[step], i));
          x_floats[step][i] = x_i;
          pass1_x_sum[i % kRunningSums] += x_i;
        }
      }
    }
    if (has_edge) {
      const float x_i = computed_once(element(x_edge, 0));
      x_edge_float = x_i;
      pass1_x_sum[0] += x_i;
    }

    Pass1 pass1 = {sum_in_pairs(pass1_x_sum)};
    pass1 = Team::reduce(pass1, pass1_slots);
    const float row_mean = Division::of(pass1.x_sum, kCols);

    float pass2_var_sum[kRunningSums] = {};  // several: shorter chains of additions, fewer roundings each

    // Pass 2: sum(x_minus_mean**2)
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = row_thread + step * kThreadsPerRow;
      if (step < kWholeSteps || vector < vectors) {
        #pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float x_i = x_floats[step][i];
          const float x_minus_mean_i = computed_once(x_i - row_mean);
          x_minus_mean_floats[step][i] = x_minus_mean_i;
          pass2_var_sum[i % kRunningSums] += x_minus_mean_i * x_minus_mean_i;
        }
      }
    }
    if (has_edge) {
      const float x_i = x_edge_float;
      const float x_minus_mean_i = computed_once(x_i - row_mean);
      x_minus_mean_edge_float = x_minus_mean_i;
      pass2_var_sum[0] += x_minus_mean_i * x_minus_mean_i;
    }

    Pass2 pass2 = {sum_in_pairs(pass2_var_sum)};
    pass2 = Team::reduce(pass2, pass2_slots);
    const float row_var = Division::of(pass2.var_sum, kCols);
    const float row_rstd = rsqrtf(eps + row_var);

    if (row_thread == 0 && active) {
      if (mean != nullptr) mean[row] = row_mean;
      if (rstd != nullptr) rstd[row] = row_rstd;
    }

    // Last pass: the outputs
    #pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int vector = row_thread + step * kThreadsPerRow;
      if (step < kWholeSteps || vector < vectors) {
        const int column = head + vector * kVector;
        if (!kEarlyParams) weight_held[step] =
            read_window<kVector>(weight, column, kCols, step >= kFirstInside && step < kWholeSteps);
        if (!kEarlyParams) bias_held[step] =
            read_window<kVector>(bias, column, kCols, step >= kFirstInside && step < kWholeSteps);
        float y_values[kVector];
        #pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float weight_i = element(weight_held[step], i);
          const float bias_i = element(bias_held[step], i);
          const float x_minus_mean_i = x_minus_mean_floats[step][i];
          y_values[i] = x_minus_mean_i * row_rstd * weight_i + bias_i;
        }
        Vec<bfloat16, kVector> y_vec;
        pack(y_vec, y_values);
        if (active) write<Store>(y_row + first_col + step * kStride, y_vec);
      }
    }
    if (has_edge) {
      if (!kEarlyParams) weight_edge = read<1>(weight + edge);
      if (!kEarlyParams) bias_edge = read<1>(bias + edge);
      float y_values[1];
      const float weight_i = element(weight_edge, 0);
      const float bias_i = element(bias_edge, 0);
      const float x_minus_mean_i = x_minus_mean_edge_float;
      y_values[0] = x_minus_mean_i * row_rstd * weight_i + bias_i;
      Vec<bfloat16, 1> y_vec;
      pack(y_vec, y_values);
      if (active) write<Store>(y_row + edge, y_vec);
    }
  }

  Chain::at_end();
}

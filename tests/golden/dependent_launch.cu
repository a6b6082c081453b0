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

// Look 1: sum(x**2)
struct Look1 {
  float x_squares;
};

__device__ __forceinline__ Look1 combine(const Look1& a, const Look1& b) {
  return {a.x_squares + b.x_squares};
}

__device__ __forceinline__ Look1 shuffle_xor(const Look1& s, int offset) {
  return {__shfl_xor_sync(0xffffffffu, s.x_squares, offset)};
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

// rmsnorm forward, 4096 columns: 256 threads own a row; it is read once.
// It may start while the kernel in front of it in the stream ends; weight may be read before it has ended.
extern "C" __global__ void __launch_bounds__(256)
rmsnorm_fwd_bf16_4096_without_rstd_block_per_row_3c3ee5(
    bfloat16* __restrict__ y,
    const bfloat16* x,
    const bfloat16* weight,
    long long y_pitch,
    long long x_pitch,
    int rows,
    float eps) {
  constexpr int kCols = 4096;
  constexpr int kThreadsPerRow = 256;
  constexpr int kVector = 8;  // elements per access of 16 bytes
  constexpr int kWarpsPerRow = kThreadsPerRow / 32;
  constexpr int kVectors = kCols / kVector;  // per row
  constexpr int kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow;  // vectors a thread owns
  __shared__ Look1 look1_slots[1][kWarpsPerRow];

  const int lane = threadIdx.x;
  const int slot = 0;  // this thread's row within the block
  const int row = blockIdx.x;

  bfloat16* y_row = y + static_cast<long long>(row) * y_pitch;
  const bfloat16* x_row = x + static_cast<long long>(row) * x_pitch;

  Vec<bfloat16, kVector> weight_held[kSteps];

  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    weight_held[step] = read_default<kVector>(weight + vector * kVector);
  }

  dependency_wait();  // nothing before it depends on the kernels in front of this one

  Vec<bfloat16, kVector> x_held[kSteps];

  // The row of x is read once and waits in registers; each thread reads back its own part.
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    x_held[step] = read_default<kVector>(x_row + vector * kVector);
  }

  dependency_trigger();  // the next kernel may start: this one has asked for its row

  Look1 look1 = {0.0f};

  // Look 1: sum(x**2)
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    #pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float x_i = element(x_held[step], i);
      look1.x_squares += x_i * x_i;
    }
  }

  look1 = reduce_row<kWarpsPerRow>(look1, look1_slots[slot]);
  const float row_rstd = rsqrtf(eps + look1.x_squares / kCols);

  // Last look: the outputs
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    float y_values[kVector];
    #pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float x_i = element(x_held[step], i);
      const float weight_i = element(weight_held[step], i);
      y_values[i] = x_i * row_rstd * weight_i;
    }
    Vec<bfloat16, kVector> y_vec;
    pack(y_vec, y_values);
    write_default(y_row + vector * kVector, y_vec);
  }
}

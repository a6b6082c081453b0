// ---- instructions ----------------------------------------------------------------------------------------------

// Cached at all levels.
template <typename Word>
__device__ __forceinline__ Word load_default(const Word* address) {
  return *address;
}

// Written once, not read again soon: evict first (st.global.cs).
template <typename Word>
__device__ __forceinline__ void store_streaming(Word* address, Word value) {
  __stcs(address, value);
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
__device__ __forceinline__ void write_streaming(T* elements, const Vec<T, N>& vec) {
  using Word = typename WordOf<Vec<T, N>::kBytes>::type;
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kBytes / static_cast<int>(sizeof(Word)); ++i) {
    Word word;
    join(word, vec.bits + i * sizeof(Word) / 4);
    store_streaming(reinterpret_cast<Word*>(elements) + i, word);
  }
}

// ---- row reduction ----------------------------------------------------------------------------------------------

// Look 1: sum(x)
struct Look1 {
  float x_sum;
};

__device__ __forceinline__ Look1 combine(const Look1& a, const Look1& b) {
  return {a.x_sum + b.x_sum};
}

__device__ __forceinline__ Look1 shuffle_xor(const Look1& s, int offset) {
  return {__shfl_xor_sync(0xffffffffu, s.x_sum, offset)};
}

// Look 2: sum((-mean + x)**2)
struct Look2 {
  float var_sum;
};

__device__ __forceinline__ Look2 combine(const Look2& a, const Look2& b) {
  return {a.var_sum + b.var_sum};
}

__device__ __forceinline__ Look2 shuffle_xor(const Look2& s, int offset) {
  return {__shfl_xor_sync(0xffffffffu, s.var_sum, offset)};
}

// All kLanes neighbouring lanes end with the combined state.
template <int kLanes, typename State>
__device__ __forceinline__ State reduce_lanes(State s) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) s = combine(s, shuffle_xor(s, offset));
  return s;
}

// layernorm forward, 768 columns: 32 lanes of a warp own a row, 4 rows a block; it is read once.
extern "C" __global__ void __launch_bounds__(128)
layernorm_fwd_f32_768_warp_per_row_add802(
    float* __restrict__ y,
    float* __restrict__ mean,
    float* __restrict__ rstd,
    const float* __restrict__ x,
    const float* __restrict__ weight,
    const float* __restrict__ bias,
    long long y_pitch,
    long long x_pitch,
    int rows,
    float eps) {
  constexpr int kCols = 768;
  constexpr int kThreadsPerRow = 32;
  constexpr int kRowsPerBlock = 4;
  constexpr int kVector = 4;  // elements per access of 16 bytes
  constexpr int kVectors = kCols / kVector;  // per row
  constexpr int kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow;  // vectors a thread owns

  const int lane = threadIdx.x % kThreadsPerRow;
  const int slot = threadIdx.x / kThreadsPerRow;  // this thread's row within the block
  const int row = blockIdx.x * kRowsPerBlock + slot;

  const bool active = row < rows;  // idle rows recompute the last row and store nothing
  const int valid_row = active ? row : rows - 1;
  float* y_row = y + static_cast<long long>(valid_row) * y_pitch;
  const float* x_row = x + static_cast<long long>(valid_row) * x_pitch;

  Vec<float, kVector> x_held[kSteps];

  // The row of x is read once and waits in registers; each thread reads back its own part.
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    x_held[step] = read_default<kVector>(x_row + vector * kVector);
  }

  Look1 look1 = {0.0f};

  // Look 1: sum(x)
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    #pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float x_i = element(x_held[step], i);
      look1.x_sum += x_i;
    }
  }

  look1 = reduce_lanes<kThreadsPerRow>(look1);
  const float row_mean = look1.x_sum / kCols;

  Look2 look2 = {0.0f};

  // Look 2: sum((-mean + x)**2)
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    #pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float x_i = element(x_held[step], i);
      look2.var_sum += (x_i - row_mean) * (x_i - row_mean);
    }
  }

  look2 = reduce_lanes<kThreadsPerRow>(look2);
  const float row_var = look2.var_sum / kCols;
  const float row_rstd = rsqrtf(eps + row_var);

  if (lane == 0 && active) {
    if (mean != nullptr) mean[row] = row_mean;
    if (rstd != nullptr) rstd[row] = row_rstd;
  }

  // Last look: the outputs
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    const Vec<float, kVector> weight_vec = read_default<kVector>(weight + vector * kVector);
    const Vec<float, kVector> bias_vec = read_default<kVector>(bias + vector * kVector);
    float y_values[kVector];
    #pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float x_i = element(x_held[step], i);
      const float weight_i = element(weight_vec, i);
      const float bias_i = element(bias_vec, i);
      y_values[i] = (x_i - row_mean) * row_rstd * weight_i + bias_i;
    }
    Vec<float, kVector> y_vec;
    pack(y_vec, y_values);
    if (active) write_streaming(y_row + vector * kVector, y_vec);
  }
}

// ---- instructions ----------------------------------------------------------------------------------------------

struct float16 {
  unsigned short bits;
};

__device__ __forceinline__ float half_to_float(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ unsigned short float_to_half(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ unsigned floats_to_half2(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  return float_to_half(low) | (static_cast<unsigned>(float_to_half(high)) << 16);
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
__device__ __forceinline__ float element(const Vec<float16, N>& vec, int i) {
  if (i % 2 == 1) return half_to_float(static_cast<unsigned short>((vec.bits[i / 2] >> 16)));
  return half_to_float(static_cast<unsigned short>(vec.bits[i / 2]));
}

template <int N>
__device__ __forceinline__ void pack(Vec<float16, N>& vec, const float (&values)[N]) {
  if (N == 1) {
    vec.bits[0] = float_to_half(values[0]);
  } else {
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) vec.bits[i / 2] = floats_to_half2(values[i], values[i + 1]);
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

// Look 1: welford(x)
struct Look1 {
  float x_count;
  float mean;
  float var_sum;
};

__device__ __forceinline__ Look1 combine(const Look1& a, const Look1& b) {
  const float total = a.x_count + b.x_count;
  const float delta = b.mean - a.mean;
  const float share = b.x_count / maximum(total, 1.0f);
  return {total, a.mean + delta * share, a.x_count * delta * delta * share + a.var_sum + b.var_sum};
}

__device__ __forceinline__ Look1 shuffle_xor(const Look1& s, int offset) {
  return {__shfl_xor_sync(0xffffffffu, s.x_count, offset),
          __shfl_xor_sync(0xffffffffu, s.mean, offset),
          __shfl_xor_sync(0xffffffffu, s.var_sum, offset)};
}

// All kLanes neighbouring lanes end with the combined state.
template <int kLanes, typename State>
__device__ __forceinline__ State reduce_lanes(State s) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) s = combine(s, shuffle_xor(s, offset));
  return s;
}

// layernorm forward, 123 columns: 32 lanes of a warp own a row; it is read twice.
extern "C" __global__ void __launch_bounds__(32)
layernorm_fwd_f16_123_warp_per_row_4607d1(
    float16* __restrict__ y,
    float* __restrict__ mean,
    float* __restrict__ rstd,
    const float16* __restrict__ x,
    const float16* __restrict__ weight,
    const float16* __restrict__ bias,
    long long y_pitch,
    long long x_pitch,
    int rows,
    float eps) {
  constexpr int kCols = 123;
  constexpr int kThreadsPerRow = 32;
  constexpr int kVector = 2;  // elements per access of 4 bytes
  constexpr int kVectors = kCols / kVector;  // per row
  constexpr int kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow;  // vectors a thread owns

  const int lane = threadIdx.x;
  const int row = blockIdx.x;
  // The elements behind the last whole vector belong to a lane each.
  const int edge = lane + kVectors * kVector;
  const bool has_edge = edge < kCols;

  float16* y_row = y + static_cast<long long>(row) * y_pitch;
  const float16* x_row = x + static_cast<long long>(row) * x_pitch;

  Look1 look1 = {0.0f, 0.0f, 0.0f};

  // Look 1: welford(x)
  #pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    if (vector < kVectors) {
      const Vec<float16, kVector> x_vec = read_default<kVector>(x_row + vector * kVector);
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float x_i = element(x_vec, i);
        const float total = look1.x_count + 1.0f;
        const float delta = x_i - look1.mean;
        const float new_mean = look1.mean + delta / total;
        look1.x_count = total;
        look1.mean = new_mean;
        look1.var_sum += (x_i - new_mean) * delta;
      }
    }
  }
  if (has_edge) {
    const Vec<float16, 1> x_vec = read_default<1>(x_row + edge);
    const float x_i = element(x_vec, 0);
    const float total = look1.x_count + 1.0f;
    const float delta = x_i - look1.mean;
    const float new_mean = look1.mean + delta / total;
    look1.x_count = total;
    look1.mean = new_mean;
    look1.var_sum += (x_i - new_mean) * delta;
  }

  look1 = reduce_lanes<kThreadsPerRow>(look1);
  const float row_var = look1.var_sum / kCols;
  const float row_rstd = rsqrtf(eps + row_var);

  if (lane == 0) {
    if (mean != nullptr) mean[row] = look1.mean;
    if (rstd != nullptr) rstd[row] = row_rstd;
  }

  // Last look: the outputs
  #pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    const int vector = lane + step * kThreadsPerRow;
    if (vector < kVectors) {
      const Vec<float16, kVector> x_vec = read_default<kVector>(x_row + vector * kVector);
      const Vec<float16, kVector> weight_vec = read_default<kVector>(weight + vector * kVector);
      const Vec<float16, kVector> bias_vec = read_default<kVector>(bias + vector * kVector);
      float y_values[kVector];
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float x_i = element(x_vec, i);
        const float weight_i = element(weight_vec, i);
        const float bias_i = element(bias_vec, i);
        y_values[i] = (x_i - look1.mean) * row_rstd * weight_i + bias_i;
      }
      Vec<float16, kVector> y_vec;
      pack(y_vec, y_values);
      write_default(y_row + vector * kVector, y_vec);
    }
  }
  if (has_edge) {
    const Vec<float16, 1> x_vec = read_default<1>(x_row + edge);
    const Vec<float16, 1> weight_vec = read_default<1>(weight + edge);
    const Vec<float16, 1> bias_vec = read_default<1>(bias + edge);
    float y_values[1];
    const float x_i = element(x_vec, 0);
    const float weight_i = element(weight_vec, 0);
    const float bias_i = element(bias_vec, 0);
    y_values[0] = (x_i - look1.mean) * row_rstd * weight_i + bias_i;
    Vec<float16, 1> y_vec;
    pack(y_vec, y_values);
    write_default(y_row + edge, y_vec);
  }
}

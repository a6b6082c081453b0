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

// e^x by the hardware's power of two: off by 2 + 1.2 |x| units in the last place at most; 0 where that is subnormal.
__device__ __forceinline__ float exp_approximate(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x * 1.442695041f));
  return value;
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

struct float8_e4m3 {
  unsigned char bits;
};

struct float8_e5m2 {
  unsigned char bits;
};

// To nearest, ties to even; what is too large becomes the largest number, NaN stays NaN.
__device__ __forceinline__ unsigned floats_to_e4m3x2(float low, float high) {
  unsigned short bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ unsigned floats_to_e5m2x2(float low, float high) {
  unsigned short bits;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ float e4m3_to_float(unsigned bits) {
  unsigned halves;
  float value;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(bits)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(halves)));
  return value;
}

__device__ __forceinline__ float e5m2_to_float(unsigned bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits << 8)));  // half of an f16
  return value;
}

// 1 / x by the hardware's reciprocal: off by 1 unit in the last place at most; 0 where that is subnormal,
// an infinity where x is.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float value;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
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

// Four elements share a register.
template <int N>
__device__ __forceinline__ float element(const Vec<float8_e4m3, N>& vec, int i) {
  return e4m3_to_float(vec.bits[i / 4] >> (8 * (i % 4)) & 0xffu);
}

template <int N>
__device__ __forceinline__ void pack(Vec<float8_e4m3, N>& vec, const float (&values)[N]) {
  if (N == 1) {
    vec.bits[0] = floats_to_e4m3x2(values[0], 0.0f);
  } else {
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
      const unsigned two = floats_to_e4m3x2(values[i], values[i + 1]);
      vec.bits[i / 4] = i % 4 == 0 ? two : vec.bits[i / 4] | two << 16;
    }
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

// How two values of a group become one.
struct Sum {
  static __device__ __forceinline__ float combine(float a, float b) { return a + b; }
};
struct Maximum {
  static __device__ __forceinline__ float combine(float a, float b) { return maximum(a, b); }
};
struct Minimum {
  static __device__ __forceinline__ float combine(float a, float b) { return minimum(a, b); }
};

// All kLanes neighbouring lanes of a warp that own a group, a power of two, end with the value of the whole group.
// Unless kTogether, other lanes of the warp may own no vector in this step: then each group shuffles by itself, for a
// dozen instructions that find out which lanes are there.
template <int kLanes, typename Operation, bool kTogether>
__device__ __forceinline__ float reduce_group(float value) {
  const unsigned first = threadIdx.x % 32 / kLanes * kLanes;
  const unsigned lanes = kTogether || kLanes == 32 ? 0xffffffffu : ((1u << kLanes % 32) - 1) << first;
  #pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = Operation::combine(value, __shfl_xor_sync(lanes, value, offset));
  }
  return value;
}

// kParts         blocks that share a row
// kVector        elements per access
// kStride        columns from one vector of a thread to its next
// kVectors       vectors of a row
// kSteps         vectors a thread owns
// kEven          all threads own kSteps of them
// kGroup         columns
// kGroupVectors  threads that own one
// kGroupStride   groups from one vector of a thread to its next

struct Cols6144 : Plain { enum : int { kCols = 6144, kThreads = 256, kParts = 3, kVector = 8, kGroup = 128 }; };

// silu_mul_to_fp8_group forward: a block owns a part of a row; each row is read once.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
silu_mul_to_fp8_group_fwd_bf16_block_per_part(
    float8_e4m3* __restrict__ q,
    float* __restrict__ scale,
    Input<Config, bfloat16> gate,
    Input<Config, bfloat16> up,
    long long q_pitch,
    long long scale_pitch,
    long long gate_pitch,
    long long up_pitch,
    int rows,
    float amax_min) {
  using Load = typename Config::Load;
  using Store = typename Config::Store;
  using Chain = typename Config::Chain;
  using Order = typename Config::Order;
  constexpr int kCols = Config::kCols, kThreads = Config::kThreads, kParts = Config::kParts,
      kThreadsPerRow = kParts * kThreads, kVector = Config::kVector, kStride = kThreadsPerRow * kVector,
      kVectors = kCols / kVector, kSteps = (kVectors + kThreadsPerRow - 1) / kThreadsPerRow;
  constexpr bool kEven = kVectors % kThreadsPerRow == 0;
  constexpr int kGroup = Config::kGroup, kGroupVectors = kGroup / kVector,
      kGroupStride = kThreadsPerRow / kGroupVectors;

  const int row_thread = static_cast<int>(blockIdx.x % kParts * kThreads + threadIdx.x);
  const int first_col = row_thread * kVector;  // of this thread's first vector
  const int own_group = static_cast<unsigned>(row_thread) / kGroupVectors;  // the group of a thread's first vector
  const bool leads_group = static_cast<unsigned>(row_thread) % kGroupVectors == 0;  // it writes what its group has
  const int row = Order::tile(blockIdx.x / kParts, rows - 1);

  float8_e4m3* q_row = q + row * q_pitch;
  float* scale_row = scale + row * scale_pitch;
  const bfloat16* gate_row = gate + row * gate_pitch;
  const bfloat16* up_row = up + row * up_pitch;

  Chain::at_start();
  Chain::wait();  // what follows may read what earlier kernels in the stream wrote

  Vec<bfloat16, kVector> gate_held[kSteps];
  Vec<bfloat16, kVector> up_held[kSteps];

  // Read the row of gate and up once; it waits in registers.
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = row_thread + step * kThreadsPerRow;
    if (kEven || vector < kVectors) {
      gate_held[step] = read<kVector, Load>(gate_row + first_col + step * kStride);
      up_held[step] = read<kVector, Load>(up_row + first_col + step * kStride);
    }
  }

  Chain::at_loads();

  // One pass: the outputs
  #pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int vector = row_thread + step * kThreadsPerRow;
    if (kEven || vector < kVectors) {
      float q_values[kVector];
      float y_kept[kVector];
      float y_absmax_g = 0.0f;
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float gate_i = element(gate_held[step], i);
        const float up_i = element(up_held[step], i);
        const float y_i = gate_i * reciprocal_approximate(exp_approximate(-gate_i) + 1.0f) * up_i;
        y_kept[i] = y_i;
        y_absmax_g = maximum(y_absmax_g, fabsf(y_i));
      }
      y_absmax_g = reduce_group<kGroupVectors, Maximum, kEven>(y_absmax_g);
      const float scale_g = maximum(amax_min, y_absmax_g) / 448.0f;
      const float scale_inverse_g = 1.0f / scale_g;
      #pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float y_i = y_kept[i];
        q_values[i] = y_i * scale_inverse_g;
      }
      Vec<float8_e4m3, kVector> q_vec;
      pack(q_vec, q_values);
      write<Store>(q_row + first_col + step * kStride, q_vec);
      if (leads_group) {
        scale_row[own_group + step * kGroupStride] = scale_g;
      }
    }
  }

  Chain::at_end();
}

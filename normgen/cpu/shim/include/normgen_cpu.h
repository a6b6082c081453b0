// The CUDA language as emitted kernels use it, for a host C++17 compiler. Replaces Module.instructions on the CPU.
// Everything here is inlined, so that a fault's call chain ends in the line of the kernel's own text.
#pragma once

#define alignas(n) __attribute__((aligned(n)))  // g++ refuses alignas after `static`
#define __device__ __attribute__((always_inline))
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __global__ __attribute__((noinline, used, visibility("hidden")))
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__ static
#define NORMGEN_JOIN2(a, b) a##b
#define NORMGEN_JOIN(a, b) NORMGEN_JOIN2(a, b)
// Every shared variable is followed by a red zone, which the runtime finds by its first bytes.
#define NORMGEN_SHARED(name)                                                                              \
  static __attribute__((section(name), used, aligned(16))) unsigned char NORMGEN_JOIN(normgen_redzone_, __COUNTER__)[128] = \
      {'n', 'o', 'r', 'm', 'g', 'e', 'n', '.', 'r', 'e', 'd', '.', 'z', 'o', 'n', 'e'};                   \
  static __attribute__((section(name)))

#define NORMGEN_INLINE static inline __attribute__((always_inline))

struct NormgenIndex {
  unsigned x, y, z;
};
struct float16 {
  unsigned short bits;
};
struct bfloat16 {
  unsigned short bits;
};
struct float8_e4m3 {
  unsigned char bits;
};
struct float8_e5m2 {
  unsigned char bits;
};
#define NORMGEN_VECTOR2(type, name)                                \
  struct alignas(2 * sizeof(type)) name {                          \
    type x, y;                                                     \
  };                                                               \
  NORMGEN_INLINE name make_##name(type x, type y) { return {x, y}; }
#define NORMGEN_VECTOR4(type, name)                                \
  struct alignas(4 * sizeof(type)) name {                          \
    type x, y, z, w;                                               \
  };                                                               \
  NORMGEN_INLINE name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }
NORMGEN_VECTOR2(float, float2)
NORMGEN_VECTOR4(float, float4)
NORMGEN_VECTOR2(int, int2)
NORMGEN_VECTOR4(int, int4)
NORMGEN_VECTOR2(unsigned, uint2)
NORMGEN_VECTOR4(unsigned, uint4)
NORMGEN_VECTOR2(unsigned short, ushort2)
NORMGEN_VECTOR4(unsigned short, ushort4)

extern "C" {
__attribute__((const)) unsigned normgen_cpu_thread_index();
__attribute__((const)) unsigned normgen_cpu_block_index();
__attribute__((const)) unsigned normgen_cpu_block_dim();
__attribute__((const)) unsigned normgen_cpu_grid_dim();
__attribute__((const)) unsigned normgen_cpu_cluster_rank();
__attribute__((const)) unsigned char* normgen_cpu_dynamic_shared();
void normgen_cpu_griddepcontrol_wait();
void normgen_cpu_syncthreads();
void normgen_cpu_threadfence();
void normgen_cpu_syncwarp(unsigned mask);
void normgen_cpu_shuffle(unsigned mask, int source, const void* in, void* out, int bytes);
unsigned normgen_cpu_ballot(unsigned mask, int predicate);
unsigned normgen_cpu_activemask();
void normgen_cpu_ldmatrix(const void* line, unsigned* parts, bool columns);
void normgen_cpu_mma(const unsigned* left, const unsigned* right, float* upper, float* lower, int kind);
void normgen_cpu_wgmma(float* sums, const void* left, const void* right, bool adds, int columns, int kind);
void normgen_cpu_wgmma_fence();
void normgen_cpu_wgmma_commit();
void normgen_cpu_wgmma_wait(int groups_left);
void normgen_cpu_named_barrier(int id, int threads);
void normgen_cpu_cluster_arrive(bool releases);
void normgen_cpu_cluster_wait();
void normgen_cpu_cluster_store(void* own, unsigned rank, const void* value, unsigned bytes);
void normgen_cpu_cluster_send(void* own, unsigned rank, const void* value, unsigned bytes, unsigned long long* mbarrier);
void normgen_cpu_cp_async(void* to, const void* from, unsigned bytes);
void normgen_cpu_cp_async_zeros(void* to, unsigned bytes);
void normgen_cpu_cp_async_commit();
void normgen_cpu_cp_async_wait(int groups_left);
void normgen_cpu_mbarrier_fence();
void normgen_cpu_mbarrier_cluster_fence();
void normgen_cpu_mbarrier_init(unsigned long long* mbarrier, unsigned count);
void normgen_cpu_mbarrier_arrive(unsigned long long* mbarrier, unsigned bytes);
void normgen_cpu_mbarrier_wait(unsigned long long* mbarrier, unsigned parity);
void normgen_cpu_griddepcontrol_launch_dependents();
void normgen_cpu_prefetch(const void* from, unsigned bytes);
void normgen_cpu_tensor_load(void* to, const unsigned long long* map, int element, int line, unsigned long long* mbarrier);
void normgen_cpu_tensor_store(const unsigned long long* map, int element, int line, const void* from);
void normgen_cpu_tensor_stores_read();
void normgen_cpu_bulk_load(void* to, const void* from, unsigned bytes, unsigned long long* mbarrier);
float normgen_cpu_atomic_add_float(float* target, float value);
int normgen_cpu_atomic_add_int(int* target, int value);
unsigned normgen_cpu_atomic_add_unsigned(unsigned* target, unsigned value);
void normgen_cpu_await_turn(const unsigned* counter, unsigned before);
float sqrtf(float) noexcept;
float expf(float) noexcept;
float exp2f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float tanhf(float) noexcept;
float erff(float) noexcept;
float erfcf(float) noexcept;
float powf(float, float) noexcept;
float sinf(float) noexcept;
float cosf(float) noexcept;
float fmaf(float, float, float) noexcept;
float fabsf(float) noexcept;
float copysignf(float, float) noexcept;
float floorf(float) noexcept;
float ceilf(float) noexcept;
float rintf(float) noexcept;
float roundf(float) noexcept;
float truncf(float) noexcept;
float expm1f(float) noexcept;
float log1pf(float) noexcept;
}

#define threadIdx (NormgenIndex{normgen_cpu_thread_index(), 0, 0})
#define blockIdx (NormgenIndex{normgen_cpu_block_index(), 0, 0})
#define blockDim (NormgenIndex{normgen_cpu_block_dim(), 1, 1})
#define gridDim (NormgenIndex{normgen_cpu_grid_dim(), 1, 1})
constexpr int warpSize = 32;

#include "normgen_cpu_math.h"
#include "normgen_cpu_sync.h"

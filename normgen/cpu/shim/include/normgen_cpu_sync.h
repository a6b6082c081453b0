// Barriers, warp collectives, atomics, cache-hinted and asynchronous accesses of the shim.
#pragma once

NORMGEN_INLINE void __syncthreads() { normgen_cpu_syncthreads(); }
NORMGEN_INLINE void __syncwarp(unsigned mask = 0xFFFFFFFFu) { normgen_cpu_syncwarp(mask); }
NORMGEN_INLINE void __threadfence() { normgen_cpu_threadfence(); }
NORMGEN_INLINE void __threadfence_block() { asm volatile("" ::: "memory"); }
NORMGEN_INLINE unsigned __activemask() { return normgen_cpu_activemask(); }
NORMGEN_INLINE unsigned __ballot_sync(unsigned mask, int predicate) { return normgen_cpu_ballot(mask, predicate); }
NORMGEN_INLINE int __any_sync(unsigned mask, int predicate) { return normgen_cpu_ballot(mask, predicate) != 0; }
NORMGEN_INLINE int __all_sync(unsigned mask, int predicate) { return normgen_cpu_ballot(mask, !predicate) == 0; }

template <typename Value>
NORMGEN_INLINE Value normgen_shuffle(unsigned mask, const Value& value, int source) {
  Value result;
  normgen_cpu_shuffle(mask, source, &value, &result, sizeof(Value));
  return result;
}

NORMGEN_INLINE int normgen_lane() { return static_cast<int>(normgen_cpu_thread_index() % 32u); }

template <typename Value>
NORMGEN_INLINE Value __shfl_sync(unsigned mask, Value value, int source, int width = 32) {
  const int first = normgen_lane() & ~(width - 1);
  return normgen_shuffle(mask, value, first + (source & (width - 1)));
}

template <typename Value>
NORMGEN_INLINE Value __shfl_xor_sync(unsigned mask, Value value, int offset, int width = 32) {
  const int lane = normgen_lane(), source = lane ^ offset, end = (lane & ~(width - 1)) + width;
  return normgen_shuffle(mask, value, source >= end ? lane : source);
}

template <typename Value>
NORMGEN_INLINE Value __shfl_down_sync(unsigned mask, Value value, unsigned offset, int width = 32) {
  const int lane = normgen_lane(), source = lane + static_cast<int>(offset), end = (lane & ~(width - 1)) + width;
  return normgen_shuffle(mask, value, source >= end ? lane : source);
}

template <typename Value>
NORMGEN_INLINE Value __shfl_up_sync(unsigned mask, Value value, unsigned offset, int width = 32) {
  const int lane = normgen_lane(), source = lane - static_cast<int>(offset), first = lane & ~(width - 1);
  return normgen_shuffle(mask, value, source < first ? lane : source);
}

NORMGEN_INLINE float atomicAdd(float* target, float value) { return normgen_cpu_atomic_add_float(target, value); }
NORMGEN_INLINE int atomicAdd(int* target, int value) { return normgen_cpu_atomic_add_int(target, value); }
NORMGEN_INLINE unsigned atomicAdd(unsigned* target, unsigned value) { return normgen_cpu_atomic_add_unsigned(target, value); }

NORMGEN_INLINE void fence_device() { normgen_cpu_threadfence(); }
NORMGEN_INLINE void await_turn(const unsigned* counter, unsigned before) { normgen_cpu_await_turn(counter, before); }

#define NORMGEN_LOAD(name)              \
  template <typename Word>              \
  NORMGEN_INLINE Word name(const Word* from) { return *from; }
#define NORMGEN_STORE(name)             \
  template <typename Word>              \
  NORMGEN_INLINE void name(Word* to, Word value) { *to = value; }
NORMGEN_LOAD(__ldg)
NORMGEN_LOAD(__ldcs)
NORMGEN_LOAD(__ldcg)
NORMGEN_STORE(__stcs)
NORMGEN_STORE(__stcg)
// Cache hints in inline PTX: one access of 1, 2, 4, 8 or 16 bytes, to and from registers of 32 bits.
template <int kBytes> struct NormgenWord { using type = uint4; };
template <> struct NormgenWord<8> { using type = uint2; };
template <> struct NormgenWord<4> { using type = unsigned; };
template <> struct NormgenWord<2> { using type = unsigned short; };
template <> struct NormgenWord<1> { using type = unsigned char; };
#define NORMGEN_HINT(name)                                                   \
  struct name {                                                              \
    template <int kBytes>                                                    \
    NORMGEN_INLINE void load(const void* address, unsigned* bits) {          \
      using Word = typename NormgenWord<kBytes>::type;                       \
      const Word word = *static_cast<const Word*>(address);                  \
      bits[0] = 0;                                                           \
      __builtin_memcpy(bits, &word, kBytes);                                 \
    }                                                                        \
    template <int kBytes>                                                    \
    NORMGEN_INLINE void store(void* address, const unsigned* bits) {         \
      using Word = typename NormgenWord<kBytes>::type;                       \
      Word word;                                                             \
      __builtin_memcpy(&word, bits, kBytes);                                 \
      *static_cast<Word*>(address) = word;                                   \
    }                                                                        \
  };
NORMGEN_HINT(NoAllocate)
NORMGEN_HINT(EvictFirst)
NORMGEN_HINT(EvictLast)

struct Ahead {
  template <typename T>
  NORMGEN_INLINE void to_l2(const T* parameter, int count) {
    if (blockIdx.x > 0 || threadIdx.x > 0) return;
    normgen_cpu_prefetch(parameter, static_cast<unsigned>(count * sizeof(T)));
  }
};

NORMGEN_INLINE void ask_l2(const void* address) { normgen_cpu_prefetch(address, 16); }

NORMGEN_INLINE unsigned char* dynamic_shared() { return normgen_cpu_dynamic_shared(); }

template <int kBytes>
NORMGEN_INLINE void cp_async(void* shared, const void* global) { normgen_cpu_cp_async(shared, global, kBytes); }
template <int kBytes>
NORMGEN_INLINE void cp_async_if(bool inside, void* shared, const void* global) {
  if (inside) normgen_cpu_cp_async(shared, global, kBytes);
  else normgen_cpu_cp_async_zeros(shared, kBytes);
}
NORMGEN_INLINE void cp_async_16(void* shared, const void* global) { normgen_cpu_cp_async(shared, global, 16); }
NORMGEN_INLINE void cp_async_8(void* shared, const void* global) { normgen_cpu_cp_async(shared, global, 8); }
NORMGEN_INLINE void cp_async_4(void* shared, const void* global) { normgen_cpu_cp_async(shared, global, 4); }
NORMGEN_INLINE void cp_async_commit() { normgen_cpu_cp_async_commit(); }
template <int N>
NORMGEN_INLINE void cp_async_wait() { normgen_cpu_cp_async_wait(N); }

template <bool kColumns, typename T>
NORMGEN_INLINE void read_matrices(const T* line, unsigned* parts) { normgen_cpu_ldmatrix(line, parts, kColumns); }
NORMGEN_INLINE void mma_bf16(const unsigned* left, const unsigned* right, float* upper, float* lower) {
  normgen_cpu_mma(left, right, upper, lower, 1);
}
NORMGEN_INLINE void mma_f16(const unsigned* left, const unsigned* right, float* upper, float* lower) {
  normgen_cpu_mma(left, right, upper, lower, 0);
}
NORMGEN_INLINE void mma_tf32(const unsigned* left, const unsigned* right, float* upper, float* lower) {
  normgen_cpu_mma(left, right, upper, lower, 2);
}

template <int kColumns>
NORMGEN_INLINE void wgmma_bf16(float* sums, const void* left, const void* right, bool more) {
  normgen_cpu_wgmma(sums, left, right, more, kColumns, 1);
}
template <int kColumns>
NORMGEN_INLINE void wgmma_f16(float* sums, const void* left, const void* right, bool more) {
  normgen_cpu_wgmma(sums, left, right, more, kColumns, 0);
}
template <int kColumns>
NORMGEN_INLINE void wgmma_tf32(float* sums, const void* left, const void* right, bool more) {
  normgen_cpu_wgmma(sums, left, right, more, kColumns, 2);
}
NORMGEN_INLINE void wgmma_fence() { normgen_cpu_wgmma_fence(); }
NORMGEN_INLINE void wgmma_commit() { normgen_cpu_wgmma_commit(); }
template <int kLeft>
NORMGEN_INLINE void wgmma_wait() { normgen_cpu_wgmma_wait(kLeft); }

// The sums come with the wait: a use in front of it reads what was there before.
template <int kTiles, int kSums>
NORMGEN_INLINE void wgmma_arrived(float (&)[kTiles][kSums]) {}

template <int kCount>
NORMGEN_INLINE void leave_registers() {}
template <int kCount>
NORMGEN_INLINE void take_registers() {}

NORMGEN_INLINE void mbarrier_init(unsigned long long* mbarrier, unsigned count) { normgen_cpu_mbarrier_init(mbarrier, count); }
NORMGEN_INLINE void mbarrier_fence() { normgen_cpu_mbarrier_fence(); }
NORMGEN_INLINE void mbarrier_expect_bytes(unsigned long long* mbarrier, unsigned bytes) { normgen_cpu_mbarrier_arrive(mbarrier, bytes); }
NORMGEN_INLINE void mbarrier_arrive(unsigned long long* mbarrier) { normgen_cpu_mbarrier_arrive(mbarrier, 0); }
NORMGEN_INLINE void mbarrier_arrive_for(unsigned long long* mbarrier, unsigned arrivals) {
  for (unsigned i = 0; i < arrivals; ++i) normgen_cpu_mbarrier_arrive(mbarrier, 0);
}
NORMGEN_INLINE void mbarrier_wait(unsigned long long* mbarrier, unsigned parity) { normgen_cpu_mbarrier_wait(mbarrier, parity); }
NORMGEN_INLINE void bulk_load(void* shared, const void* global, unsigned bytes, unsigned long long* mbarrier) {
  normgen_cpu_bulk_load(shared, global, bytes, mbarrier);
}
NORMGEN_INLINE void tensor_load(void* shared, const void* map, int element, int line, unsigned long long* mbarrier) {
  normgen_cpu_tensor_load(shared, static_cast<const unsigned long long*>(map), element, line, mbarrier);
}
NORMGEN_INLINE void shared_fence() { normgen_cpu_mbarrier_fence(); }
NORMGEN_INLINE void tensor_store(const void* map, int element, int line, const void* shared) {
  normgen_cpu_tensor_store(static_cast<const unsigned long long*>(map), element, line, shared);
}
NORMGEN_INLINE void tensor_stores_read() { normgen_cpu_tensor_stores_read(); }
template <typename Hint>
NORMGEN_INLINE void bulk_load_by(void* shared, const void* global, unsigned bytes, unsigned long long* mbarrier) {
  bulk_load(shared, global, bytes, mbarrier);
}

NORMGEN_INLINE unsigned cluster_rank() { return normgen_cpu_cluster_rank(); }
template <typename Value>
NORMGEN_INLINE void cluster_store(Value* own_shared_address, unsigned rank, Value value) {
  normgen_cpu_cluster_store(own_shared_address, rank, &value, sizeof(Value));
}
NORMGEN_INLINE void cluster_store_four(float* own_shared_address, unsigned rank, float a, float b, float c, float d) {
  const float values[4] = {a, b, c, d};
  normgen_cpu_cluster_store(own_shared_address, rank, values, sizeof(values));
}
template <typename Value>
NORMGEN_INLINE void cluster_send(Value* own_shared_address, unsigned rank, Value value, unsigned long long* mbarrier) {
  normgen_cpu_cluster_send(own_shared_address, rank, &value, sizeof(Value), mbarrier);
}
NORMGEN_INLINE void mbarrier_cluster_fence() { normgen_cpu_mbarrier_cluster_fence(); }
NORMGEN_INLINE void cluster_arrive() { normgen_cpu_cluster_arrive(true); }
NORMGEN_INLINE void cluster_arrive_relaxed() { normgen_cpu_cluster_arrive(false); }
NORMGEN_INLINE void cluster_wait() { normgen_cpu_cluster_wait(); }
NORMGEN_INLINE float largest_of_warp(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value = maximum(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
NORMGEN_INLINE unsigned larger_halves(unsigned a, unsigned b) {
  return max(a & 0xffff0000u, b & 0xffff0000u) | max(a & 0xffffu, b & 0xffffu);
}
NORMGEN_INLINE void opaque(unsigned&) {}
NORMGEN_INLINE int kept(int value) { return value; }
NORMGEN_INLINE float computed_once(float value) { return value; }
NORMGEN_INLINE void settled(unsigned&) {}
NORMGEN_INLINE void named_barrier(int id, int threads) { normgen_cpu_named_barrier(id, threads); }
NORMGEN_INLINE void griddepcontrol_wait() { normgen_cpu_griddepcontrol_wait(); }
NORMGEN_INLINE void griddepcontrol_launch_dependents() { normgen_cpu_griddepcontrol_launch_dependents(); }

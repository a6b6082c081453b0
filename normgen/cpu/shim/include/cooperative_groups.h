// The part of cooperative groups that emitted kernels use: the block, power-of-two tiles of a warp, and their shuffles.
#pragma once

namespace cooperative_groups {

struct thread_block {
  NORMGEN_INLINE void sync() { normgen_cpu_syncthreads(); }
  NORMGEN_INLINE unsigned thread_rank() { return normgen_cpu_thread_index(); }
  NORMGEN_INLINE unsigned size() { return normgen_cpu_block_dim(); }
  NORMGEN_INLINE unsigned num_threads() { return normgen_cpu_block_dim(); }
};

NORMGEN_INLINE thread_block this_thread_block() { return {}; }

template <unsigned Size, typename Parent = thread_block>
struct thread_block_tile {
  static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0, "a tile is a power of two of at most a warp");
  static constexpr unsigned kSize = Size;
  NORMGEN_INLINE unsigned lanes() { return (Size == 32 ? 0xFFFFFFFFu : (1u << (Size % 32)) - 1u) << (normgen_lane() & ~(Size - 1)); }
  NORMGEN_INLINE unsigned thread_rank() { return normgen_cpu_thread_index() % Size; }
  NORMGEN_INLINE unsigned size() { return Size; }
  NORMGEN_INLINE unsigned num_threads() { return Size; }
  NORMGEN_INLINE unsigned meta_group_rank() { return normgen_cpu_thread_index() / Size; }
  NORMGEN_INLINE unsigned meta_group_size() { return (normgen_cpu_block_dim() + Size - 1) / Size; }
  NORMGEN_INLINE void sync() { normgen_cpu_syncwarp(lanes()); }
  template <typename Value>
  __attribute__((always_inline)) inline Value shfl(Value value, int source) const { return __shfl_sync(lanes(), value, source, Size); }
  template <typename Value>
  __attribute__((always_inline)) inline Value shfl_xor(Value value, int offset) const {
    return __shfl_xor_sync(lanes(), value, offset, Size);
  }
  template <typename Value>
  __attribute__((always_inline)) inline Value shfl_down(Value value, unsigned offset) const {
    return __shfl_down_sync(lanes(), value, offset, Size);
  }
};

template <unsigned Size, typename Parent>
NORMGEN_INLINE thread_block_tile<Size, Parent> tiled_partition(const Parent&) { return {}; }

}  // namespace cooperative_groups

// Fences: what they cover, and accesses that need one and lack it.
#include <algorithm>

#include "runtime.h"

namespace normgen_cpu {

namespace {

bool comes_after_one_of(const std::vector<uint64_t>& stamps, const Fiber& fiber) {
  for (const uint64_t stamp : stamps) {
    if (is_ordered(stamp, fiber)) return true;
  }
  return false;
}

// Whether somebody has made that write visible to the copy engine in front of the present thread's copy.
bool is_visible_to_copies(uint64_t stamp) {
  const Fiber& fiber = *machine.current;
  for (const Fiber* one : fiber.block->fibers) {
    const auto covers = [&](const Fence& fence) { return is_within(stamp, fence, one->stamp_thread); };
    const auto fence = std::find_if(one->proxy_fences.begin(), one->proxy_fences.end(), covers);
    if (fence != one->proxy_fences.end() && is_ordered(stamp_of(*one, fence->clock), fiber)) return true;
  }
  return false;
}

// A byte of shared memory that a thread wrote and the copy engine does not see yet, or -1.
int64_t unseen_byte(uintptr_t address, size_t bytes) {
  const Block& block = *machine.current->block;
  const size_t first = shadow_index(address);
  std::vector<uint64_t> seen;  // stamps that are visible
  for (size_t i = first; i < first + bytes; ++i) {
    const uint64_t stamp = block.shadow.write[i];
    if (stamp >> kStampShift < block.start_clock || std::find(seen.begin(), seen.end(), stamp) != seen.end()) continue;
    const bool is_own = (stamp & kThreadBits) == kAsyncThread || (stamp & kInFlightFlag) != 0;
    if (!is_own && !is_visible_to_copies(stamp)) return static_cast<int64_t>(i);
    seen.push_back(stamp);
  }
  return -1;
}

}  // namespace

Fence fence_now(const Fiber& fiber) {
  return Fence{tick(), fiber.block->barrier_clock, fiber.warp_clock, fiber.event};
}

// Whether an access by a thread of the cluster stands in front of `fence`, a fence of thread `owner`.
bool is_within(uint64_t stamp, const Fence& fence, uint64_t owner) {
  const uint64_t thread = stamp & kThreadBits, clock = stamp >> kStampShift;
  if (thread == owner) return clock < fence.clock;
  if (thread / kMaxThreads != owner / kMaxThreads) return false;
  return clock < fence.barrier || (thread / kWarp == owner / kWarp && clock < fence.warp);
}

bool check_mbarrier_order(const Mbarrier& mbarrier, uintptr_t pc) {
  if (is_ordered(mbarrier.initialised, *machine.current)) return true;
  const uint64_t thread = mbarrier.initialised & kThreadBits;
  record_fault(kMbarrier, pc, "thread %d of block rank %d uses an mbarrier with no barrier since thread %d of block rank %d "
               "initialised it", machine.current->thread, machine.current->block->rank,
               static_cast<int>(thread % kMaxThreads), static_cast<int>(thread / kMaxThreads));
  return false;
}

// The copy engine counts its bytes at an mbarrier only once it sees the mbarrier.
void check_proxy(const Mbarrier& mbarrier, uintptr_t pc) {
  const Fiber& fiber = *machine.current;
  if (comes_after_one_of(mbarrier.proxy_fences, fiber)) return;
  if (mbarrier.cluster_fence != 0 && is_ordered(mbarrier.cluster_fence, fiber)) return;
  record_fault(kMissingFence, pc, "a bulk copy uses an mbarrier with no mbarrier_fence() since its initialisation: the "
               "copy engine may not see it");
}

// Behind a cluster barrier, another block sees an mbarrier only if its initialisation was fenced in front of the barrier.
void check_cluster_fence(const Mbarrier& mbarrier, uintptr_t pc) {
  const Fiber& fiber = *machine.current;
  if (!is_ordered(mbarrier.initialised, fiber)) return;  // a fault of its own
  if (mbarrier.cluster_fence != 0 && is_ordered(mbarrier.cluster_fence, fiber)) return;
  record_fault(kMissingFence, pc, "sends to another block with no mbarrier_cluster_fence() between the initialisation of "
               "that block's mbarrier and the cluster barrier: the mbarrier may not be seen");
}

// A bulk copy over what threads wrote: the two reach shared memory on different ways, and the write may come last.
void check_overwritten(const Copy& copy, uintptr_t pc) {
  const int64_t at = unseen_byte(reinterpret_cast<uintptr_t>(copy.to), copy.bytes);
  if (at < 0) return;
  record_fault(kMissingFence, pc, "a bulk copy overwrites shared byte %lld with no mbarrier_fence() since thread %d wrote it",
               static_cast<long long>(at), static_cast<int>(machine.current->block->shadow.write[at] % kMaxThreads));
}

// The same of what the copy engine stores.
void check_stored(const Copy& copy, uintptr_t pc) {
  const int64_t at = unseen_byte(reinterpret_cast<uintptr_t>(copy.from), copy.bytes);
  if (at < 0) return;
  record_fault(kMissingFence, pc, "a tensor copy stores shared byte %lld with no shared_fence() since thread %d wrote it",
               static_cast<long long>(at), static_cast<int>(machine.current->block->shadow.write[at] % kMaxThreads));
}

}  // namespace normgen_cpu

using namespace normgen_cpu;

NORMGEN_API void normgen_cpu_threadfence() {
  Fiber& fiber = *machine.current;
  fiber.fence = fence_now(fiber);
  acquire_counters(fiber);
}

NORMGEN_API void normgen_cpu_mbarrier_fence() {
  Fiber& fiber = *machine.current;
  fiber.proxy_fences.push_back(fence_now(fiber));
  for (auto& [address, mbarrier] : fiber.block->mbarriers) {
    if (!is_ordered(mbarrier.initialised, fiber) || comes_after_one_of(mbarrier.proxy_fences, fiber)) continue;
    mbarrier.proxy_fences.push_back(stamp_of(fiber, fiber.proxy_fences.back().clock));
  }
}

// fence.mbarrier_init covers the initialisations of the thread that runs it, and no others.
NORMGEN_API void normgen_cpu_mbarrier_cluster_fence() {
  Fiber& fiber = *machine.current;
  const uint64_t stamp = stamp_of(fiber, tick());
  for (auto& [address, mbarrier] : fiber.block->mbarriers) {
    if ((mbarrier.initialised & kThreadBits) == fiber.stamp_thread && mbarrier.cluster_fence == 0) {
      mbarrier.cluster_fence = stamp;
    }
  }
}

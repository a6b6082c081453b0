// Barriers of a block, of a part of a block, and of a cluster; accesses to another block's shared memory.
#include <cstring>

#include "runtime.h"

namespace normgen_cpu {

namespace {

void release_block(Block& block) {
  const uintptr_t first = block.fibers[0]->pc;
  for (const Fiber* fiber : block.fibers) {
    if (fiber->pc == first) continue;
    fault_meeting(fiber->pc, first, "thread %d and thread 0 stand at different __syncthreads", fiber->thread);
  }
  block.at_barrier = 0;
  block.barrier_clock = tick();
  block.events.clear();
  if (machine.launch.cluster == 1) block.readers.clear();  // a block of the cluster may write here without this barrier
  for (auto& [address, mbarrier] : block.mbarriers) {
    mbarrier.completed = -1;
    mbarrier.arrivals.clear();  // what arrived before the barrier is known to all by the barrier
  }
  for (Fiber* fiber : block.fibers) {
    fiber->event = -1;
    wake(fiber);
  }
}

// `bar.sync` is one instruction for all lanes of a warp; other warps may come to the barrier at other places.
void check_named_places(const std::vector<Fiber*>& waiting) {
  const Fiber* first_of_warp[kMaxWarps] = {};
  for (const Fiber* one : waiting) {
    const Fiber*& first = first_of_warp[one->warp()];
    if (first == nullptr) first = one;
    if (one->pc == first->pc) continue;
    fault_meeting(one->pc, first->pc, "threads %d and %d of a warp stand at different calls of named barrier %d", one->thread,
                  first->thread, one->named_id);
  }
}

}  // namespace

unsigned char* shared_of(Block& target, uintptr_t own) {
  if (&target == machine.live) return reinterpret_cast<unsigned char*>(own);
  const size_t index = shadow_index(own);
  return index < machine.static_bytes ? target.saved_static.data() + index
                                      : target.saved_dynamic.data() + (index - machine.static_bytes);
}

// The block an access to the cluster goes to: it must exist, run and not have ended.
Block& block_of_cluster(uintptr_t address, unsigned rank, uintptr_t pc) {
  if (!in_shared(address)) fatal_fault(kOutOfBoundsShared, pc, "what stores into the cluster needs a shared address");
  if (rank >= machine.cluster.size()) {
    fatal_fault(kOutOfBoundsShared, pc, "stores into block rank %u of a cluster of %zu", rank, machine.cluster.size());
  }
  Block& target = *machine.cluster[rank];
  if (&target == machine.current->block) return target;
  if (machine.current->cluster_phase == 0) {
    record_fault(kSharedRace, pc, "stores into block rank %u before any cluster barrier: that block may not run yet", rank);
  }
  if (target.exited == static_cast<int>(target.fibers.size())) {
    fatal_fault(kOutOfBoundsShared, pc, "stores into block rank %u, all of whose threads have exited", rank);
  }
  return target;
}

void recheck_block_barrier(Block& block) {
  if (block.at_barrier == 0 || block.at_barrier + block.exited < static_cast<int>(block.fibers.size())) return;
  if (block.exited == 0) {
    release_block(block);
    return;
  }
  for (const Fiber* fiber : block.fibers) {
    if (fiber->exited) continue;
    fatal_fault(kDivergentBarrier, fiber->pc, "%d of %zu threads reach __syncthreads; the other %d have exited",
                block.at_barrier, block.fibers.size(), block.exited);
  }
}

void recheck_cluster_barrier() {
  int live = 0;
  for (const Block* block : machine.cluster) live += static_cast<int>(block->fibers.size()) - block->exited;
  if (machine.cluster_arrived == 0 || machine.cluster_arrived < live) return;
  machine.cluster_arrived = 0;
  ++machine.cluster_phase;
  for (Block* block : machine.cluster) {
    for (Fiber* fiber : block->fibers) {
      if (!fiber->exited && fiber->wait == Wait::kCluster) wake(fiber);
    }
  }
}

// Where nobody is ready: those that wait for a counter go on if it has turned meanwhile.
bool recheck_counters() {
  bool any = false;
  for (Block* block : machine.cluster) {
    for (Fiber* fiber : block->fibers) {
      if (fiber->exited || fiber->wait != Wait::kCounter || *fiber->counter >> 31 == fiber->before) continue;
      wake(fiber);
      any = true;
    }
  }
  return any;
}

}  // namespace normgen_cpu

using namespace normgen_cpu;

// A thread spins until the top bit of a counter in memory is no longer `before`.
NORMGEN_API void normgen_cpu_await_turn(const unsigned* counter, unsigned before) {
  const uintptr_t pc = NORMGEN_CALLER;
  if (time_is_up) fault_timeout(pc);
  const uintptr_t address = reinterpret_cast<uintptr_t>(counter);
  trace_step(address, sizeof(unsigned), kAtomic);
  check_access(address, sizeof(unsigned), kAtomic, true, pc);
  Fiber& fiber = *machine.current;
  fiber.counter = counter;
  fiber.before = before;
  while (*counter >> 31 == before) park(Wait::kCounter, pc);
  rely_on_counter(address, before != 0);
}

NORMGEN_API void normgen_cpu_syncthreads() {
  const uintptr_t pc = NORMGEN_CALLER;
  if (time_is_up) fault_timeout(pc);
  Fiber& fiber = *machine.current;
  fiber.pc = pc;
  fiber.wait = Wait::kBlock;
  ++fiber.block->at_barrier;
  recheck_block_barrier(*fiber.block);
  leave_fiber();
}

NORMGEN_API void normgen_cpu_named_barrier(int id, int threads) {
  const uintptr_t pc = NORMGEN_CALLER;
  if (time_is_up) fault_timeout(pc);
  Fiber& fiber = *machine.current;
  Block& block = *fiber.block;
  if (id < 0 || id >= kNamedBarriers || threads % kWarp != 0 || threads <= 0) {
    fatal_fault(kDivergentBarrier, pc, "a named barrier needs an id of 0..15 and whole warps, not id %d with %d threads", id,
                threads);
  }
  std::vector<Fiber*>& waiting = block.named[id];
  if (!waiting.empty() && waiting[0]->named_threads != threads) {
    fatal_fault(kDivergentBarrier, pc, "named barrier %d is used for %d and for %d threads at the same time", id,
                waiting[0]->named_threads, threads);
  }
  fiber.named_id = id;
  fiber.named_threads = threads;
  fiber.pc = pc;
  fiber.wait = Wait::kNamed;
  waiting.push_back(&fiber);
  if (static_cast<int>(waiting.size()) == threads) {
    check_named_places(waiting);
    std::vector<uint32_t> masks(kMaxWarps, 0);
    std::vector<int> before;
    for (const Fiber* one : waiting) {
      masks[one->warp()] |= 1u << one->lane();
      if (one->event >= 0) before.push_back(one->event);
    }
    std::vector<Lanes> lanes;
    for (int warp = 0; warp < kMaxWarps; ++warp) {
      if (masks[warp] != 0) lanes.push_back(Lanes{warp, masks[warp]});
    }
    const int event = add_event(block, std::move(lanes), std::move(before), false);
    for (Fiber* one : waiting) {
      one->event = event;
      wake(one);
    }
    waiting.clear();
  }
  leave_fiber();
}

NORMGEN_API void normgen_cpu_cluster_arrive(bool releases) {
  const uintptr_t pc = NORMGEN_CALLER;
  Fiber& fiber = *machine.current;
  if (fiber.cluster_arrived) fatal_fault(kDivergentBarrier, pc, "arrives twice at the cluster barrier without a wait");
  fiber.cluster_arrived = true;
  const auto& before = machine.arrivals[(machine.cluster_phase + 1) % 2];  // what others have known since then
  machine.arrivals[machine.cluster_phase % 2][fiber.stamp_thread] = releases ? tick() : before[fiber.stamp_thread];
  ++machine.cluster_arrived;
  recheck_cluster_barrier();
}

NORMGEN_API void normgen_cpu_cluster_wait() {
  const uintptr_t pc = NORMGEN_CALLER;
  if (time_is_up) fault_timeout(pc);
  Fiber& fiber = *machine.current;
  if (!fiber.cluster_arrived) fatal_fault(kDivergentBarrier, pc, "waits at the cluster barrier without having arrived");
  while (machine.cluster_phase == fiber.cluster_phase) park(Wait::kCluster, pc);
  fiber.cluster_arrived = false;
  ++fiber.cluster_phase;
}

NORMGEN_API unsigned normgen_cpu_cluster_rank() { return static_cast<unsigned>(machine.current->block->rank); }

NORMGEN_API void normgen_cpu_cluster_store(void* own, unsigned rank, const void* value, unsigned bytes) {
  const uintptr_t pc = NORMGEN_CALLER;
  const uintptr_t address = reinterpret_cast<uintptr_t>(own);
  Block& target = block_of_cluster(address, rank, pc);
  if (&target == machine.current->block) {
    check_access(address, bytes, kWrite, (bytes & (bytes - 1)) == 0, pc);
    std::memcpy(own, value, bytes);
    return;
  }
  check_shared_extent(address, bytes, kWrite, pc);
  check_remote_write(target, shadow_index(address), bytes, pc);
  std::memcpy(shared_of(target, address), value, bytes);
}

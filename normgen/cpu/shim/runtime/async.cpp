// Asynchronous copies and mbarriers. A copy's bytes arrive only when somebody waits for them, as late as allowed.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime.h"

namespace normgen_cpu {

namespace {

void check_alignment(uintptr_t address, size_t alignment, const char* what, uintptr_t pc) {
  if (address % alignment == 0) return;
  fatal_fault(kMisaligned, pc, "%s must be a multiple of %zu, and its largest power-of-two factor is %zu", what, alignment,
              static_cast<size_t>(address & -address));
}

alignas(16) const unsigned char kZeros[16] = {};  // of no tensor

Copy checked_copy(void* to, const void* from, unsigned bytes, size_t alignment, uintptr_t pc, bool rounds = false) {
  const uintptr_t target = reinterpret_cast<uintptr_t>(to);
  check_alignment(target, alignment, "the shared address of an asynchronous copy", pc);
  check_alignment(reinterpret_cast<uintptr_t>(from), alignment, "the global address of an asynchronous copy", pc);
  if (!in_shared(target)) fatal_fault(kOutOfBoundsShared, pc, "an asynchronous copy writes outside shared memory");
  const Copy copy{static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, pc, rounds};
  mark_in_flight(copy, from != kZeros, pc);
  return copy;
}

// The mbarrier that block has at that address. The order of fibers may hide that a thread uses one too early, so the
// initialisation must come first by barriers, too.
Mbarrier& find_mbarrier(Block& block, unsigned long long* address, uintptr_t pc) {
  const uintptr_t key = reinterpret_cast<uintptr_t>(address);
  if (!in_shared(key)) fatal_fault(kOutOfBoundsShared, pc, "an mbarrier must lie in shared memory");
  const auto found = block.mbarriers.find(key);
  if (found == block.mbarriers.end()) {
    fatal_fault(kMbarrier, pc, "thread %d uses an mbarrier that block rank %d has not initialised", machine.current->thread,
                block.rank);
  }
  if (check_mbarrier_order(found->second, pc) && &block == machine.current->block) {
    check_access(key, sizeof *address, kAtomic, true, pc);
  }
  return found->second;
}

Mbarrier& own_mbarrier(unsigned long long* address, uintptr_t pc) { return find_mbarrier(*machine.current->block, address, pc); }

int arrival_event() {
  Fiber& fiber = *machine.current;
  std::vector<int> before;
  if (fiber.event >= 0) before.push_back(fiber.event);
  fiber.event = add_event(*fiber.block, {Lanes{fiber.warp(), 1u << fiber.lane()}}, std::move(before), false);
  return fiber.event;
}

bool has_waiter(const Block& block, const Mbarrier& mbarrier) {
  for (const Fiber* fiber : block.fibers) {
    if (!fiber->exited && fiber->wait == Wait::kMbarrier && fiber->mbarrier == &mbarrier) return true;
  }
  return false;
}

// Completes the phase when every arrival and byte has come; `deliver` lands what is still under way first.
void settle(Block& block, Mbarrier& mbarrier, bool deliver) {
  if (deliver && !(mbarrier.copies.empty() && mbarrier.sent.empty())) {
    tick();
    for (const Copy& copy : mbarrier.copies) {
      land(copy, kAsyncThread);
      mbarrier.missing_bytes -= copy.bytes;
    }
    mbarrier.copies.clear();
    for (const Sent& sent : mbarrier.sent) {
      std::memcpy(shared_of(block, sent.to), sent.value, sent.bytes);
      land_bytes(block, shadow_index(sent.to), sent.bytes, kAsyncThread);
      mbarrier.missing_bytes -= sent.bytes;
    }
    mbarrier.sent.clear();
  }
  if (mbarrier.pending != 0 || mbarrier.missing_bytes != 0) return;
  mbarrier.completed = add_event(block, {}, std::move(mbarrier.arrivals), true);
  mbarrier.arrivals.clear();
  if (!mbarrier.told.empty()) mbarrier.known.resize(machine.cluster.size() * kMaxWarps, 0);
  for (const Knowledge& told : mbarrier.told) mbarrier.known[told.warp] = std::max(mbarrier.known[told.warp], told.clock);
  mbarrier.told.clear();
  mbarrier.pending = mbarrier.count;
  ++mbarrier.phase;
  for (Fiber* fiber : block.fibers) {
    if (!fiber->exited && fiber->wait == Wait::kMbarrier && fiber->mbarrier == &mbarrier) wake(fiber);
  }
}

void arrive(Mbarrier& mbarrier, uint64_t bytes, uintptr_t pc) {
  mbarrier.missing_bytes += static_cast<int64_t>(bytes);
  if (--mbarrier.pending < 0) {
    fatal_fault(kDeadlock, pc, "more arrivals at an mbarrier than the %u it was initialised for", mbarrier.count);
  }
  mbarrier.arrivals.push_back(arrival_event());
  Block& block = *machine.current->block;
  settle(block, mbarrier, has_waiter(block, mbarrier));
}

// What received values tell a thread: all that their senders' warps did before their last __syncwarp.
void learn(Fiber& fiber, const Mbarrier& mbarrier) {
  if (fiber.known.size() < mbarrier.known.size()) fiber.known.resize(mbarrier.known.size(), 0);
  for (size_t warp = 0; warp < mbarrier.known.size(); ++warp) {
    fiber.known[warp] = std::max(fiber.known[warp], mbarrier.known[warp]);
  }
}

void start_thread_copy(void* to, const void* from, unsigned bytes, uintptr_t pc) {
  machine.current->uncommitted.push_back(checked_copy(to, from, bytes, bytes, pc));
}

// Pieces of 16 bytes of a line change places: of 128 bytes by the line's place among eight, of 64 by its pair's among four.
uintptr_t swizzled(uintptr_t address, uintptr_t line_bytes) { return address ^ (address >> 7 & (line_bytes / 16 - 1)) << 4; }

void fault_unawaited(const char* who, const Copy& copy) {
  record_fault(kUnawaited, copy.pc, "%s ends while %u bytes that it asked for are on their way to shared memory", who,
               copy.bytes);
}

constexpr unsigned long long kRoundedFloats = 11;  // CU_TENSOR_MAP_DATA_TYPE_TFLOAT32

// Each piece of 16 bytes of a box of a matrix: where it lies in memory and in shared memory, how many bytes of it are of
// the matrix, and how many are not.
// `map`: address, bytes of a pitch, elements of a line, lines, of a box both, and the kind of elements.
template <typename Visit>
void visit_box(const unsigned long long* map, int element, int line, const void* shared, uintptr_t pc, const Visit& visit) {
  const int64_t bytes = map[6] == kRoundedFloats ? 4 : 2, piece = 16 / bytes;
  const uintptr_t start = reinterpret_cast<uintptr_t>(shared), line_bytes = map[4] * bytes;
  check_alignment(start, 8 * line_bytes, "the shared address of a swizzled tensor copy", pc);
  check_alignment(map[0], 16, "the address of a matrix of tensor copies", pc);
  check_alignment(map[1], 16, "the pitch of a matrix of tensor copies", pc);
  const auto length = static_cast<int64_t>(map[2]), lines = static_cast<int64_t>(map[3]);
  for (int64_t i = 0; i < static_cast<int64_t>(map[5]); ++i) {
    for (int64_t at = 0; at < static_cast<int64_t>(map[4]); at += piece) {
      const bool is_inside = line + i >= 0 && line + i < lines && element + at >= 0;
      const int64_t left = is_inside ? std::min(piece, std::max<int64_t>(0, length - element - at)) : 0;
      auto* const place = reinterpret_cast<unsigned char*>(swizzled(start + i * line_bytes + at * bytes, line_bytes));
      visit(reinterpret_cast<unsigned char*>(map[0] + (line + i) * map[1] + (element + at) * bytes), place, left * bytes,
            (piece - left) * bytes);
    }
  }
}

}  // namespace

// At a thread's end: its own copies must have come, and if it is its block's last one, all bulk copies of the block.
void check_awaited(Fiber& fiber) {
  for (const auto& group : fiber.groups) {
    if (!group.empty()) return fault_unawaited("a thread", group.front());
  }
  if (!fiber.uncommitted.empty()) return fault_unawaited("a thread", fiber.uncommitted.front());
  if (!fiber.stores.empty()) {
    record_fault(kUnawaited, fiber.stores.front().pc, "a thread ends while %u bytes are stored of its block's shared memory",
                 fiber.stores.front().bytes);
  }
  Block& block = *fiber.block;
  const Products& products = block.products[fiber.warp()];
  if (!products.open.empty() || !products.groups.empty()) {
    record_fault(kUnawaited, machine.image_begin, "thread %d ends while products that it asked for are under way", fiber.thread);
    return;
  }
  if (block.exited + 1 < static_cast<int>(block.fibers.size())) return;
  for (const auto& [to, bytes] : block.stored) std::memcpy(to, bytes.data(), bytes.size());
  block.stored.clear();
  for (const auto& [address, mbarrier] : block.mbarriers) {
    if (!mbarrier.copies.empty()) return fault_unawaited("a block", mbarrier.copies.front());
  }
}

}  // namespace normgen_cpu

using namespace normgen_cpu;

NORMGEN_API void normgen_cpu_cp_async(void* to, const void* from, unsigned bytes) {
  start_thread_copy(to, from, bytes, NORMGEN_CALLER);
}

NORMGEN_API void normgen_cpu_cp_async_zeros(void* to, unsigned bytes) {
  start_thread_copy(to, kZeros, bytes, NORMGEN_CALLER);
}

NORMGEN_API void normgen_cpu_cp_async_commit() {
  Fiber& fiber = *machine.current;
  fiber.groups.push_back(std::move(fiber.uncommitted));
  fiber.uncommitted.clear();
}

NORMGEN_API void normgen_cpu_cp_async_wait(int groups_left) {
  Fiber& fiber = *machine.current;
  while (fiber.groups.size() > static_cast<size_t>(groups_left)) {
    for (const Copy& copy : fiber.groups.front()) land(copy, fiber.stamp_thread);
    fiber.groups.erase(fiber.groups.begin());
  }
}

NORMGEN_API void normgen_cpu_mbarrier_init(unsigned long long* address, unsigned count) {
  const uintptr_t pc = NORMGEN_CALLER, key = reinterpret_cast<uintptr_t>(address);
  if (!in_shared(key)) fatal_fault(kOutOfBoundsShared, pc, "an mbarrier must lie in shared memory");
  auto& mbarriers = machine.current->block->mbarriers;
  if (mbarriers.count(key) != 0) fatal_fault(kMbarrier, pc, "initialises an mbarrier that is in use already");
  check_access(key, sizeof *address, kWrite, true, pc);
  Mbarrier& mbarrier = mbarriers[key];
  mbarrier.initialised = my_stamp();
  mbarrier.count = count;
  mbarrier.pending = count;
}

NORMGEN_API void normgen_cpu_mbarrier_arrive(unsigned long long* address, unsigned bytes) {
  const uintptr_t pc = NORMGEN_CALLER;
  arrive(own_mbarrier(address, pc), bytes, pc);
}

NORMGEN_API void normgen_cpu_mbarrier_wait(unsigned long long* address, unsigned parity) {
  const uintptr_t pc = NORMGEN_CALLER;
  Mbarrier& mbarrier = own_mbarrier(address, pc);
  Fiber& fiber = *machine.current;
  if (mbarrier.phase % 2 == parity % 2) {
    fiber.mbarrier = &mbarrier;
    fiber.parity = parity;
    settle(*fiber.block, mbarrier, true);
    while (mbarrier.phase % 2 == parity % 2) park(Wait::kMbarrier, pc);
  }
  learn(fiber, mbarrier);
  std::vector<int> before;
  if (fiber.event >= 0) before.push_back(fiber.event);
  const bool known = mbarrier.completed >= 0 && mbarrier.completed < static_cast<int>(fiber.block->events.size());
  if (known) before.push_back(mbarrier.completed);
  fiber.event = add_event(*fiber.block, {Lanes{fiber.warp(), 1u << fiber.lane()}}, std::move(before), false);
}

NORMGEN_API void normgen_cpu_bulk_load(void* to, const void* from, unsigned bytes, unsigned long long* address) {
  const uintptr_t pc = NORMGEN_CALLER;
  if (bytes % 16 != 0) fatal_fault(kMisaligned, pc, "a bulk copy moves a multiple of 16 bytes, and this one %u", bytes);
  Mbarrier& mbarrier = own_mbarrier(address, pc);
  if (bytes == 0) return;
  check_proxy(mbarrier, pc);
  check_overwritten(Copy{static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, pc}, pc);
  mbarrier.copies.push_back(checked_copy(to, from, bytes, 16, pc));
  Block& block = *machine.current->block;
  if (has_waiter(block, mbarrier)) settle(block, mbarrier, true);
}

NORMGEN_API void normgen_cpu_tensor_load(void* shared, const unsigned long long* map, int element, int line,
                                         unsigned long long* address) {
  const uintptr_t pc = NORMGEN_CALLER;
  Mbarrier& mbarrier = own_mbarrier(address, pc);
  check_proxy(mbarrier, pc);
  const bool rounds = map[6] == kRoundedFloats;
  const auto copy = [&](unsigned char* target, const unsigned char* source, int64_t bytes) {
    if (bytes == 0) return;
    const Copy one{target, source, static_cast<uint32_t>(bytes), pc};
    check_overwritten(one, pc);
    mbarrier.copies.push_back(checked_copy(target, source, one.bytes, rounds ? 4 : 2, pc, rounds));
  };
  visit_box(map, element, line, shared, pc, [&](const unsigned char* from, unsigned char* place, int64_t there, int64_t none) {
    copy(place, from, there);
    copy(place + there, kZeros, none);
  });
  Block& block = *machine.current->block;
  if (has_waiter(block, mbarrier)) settle(block, mbarrier, true);
}

// Read when it is waited for; that it is in memory is known only at the kernel's end.
NORMGEN_API void normgen_cpu_tensor_store(const unsigned long long* map, int element, int line, const void* shared) {
  const uintptr_t pc = NORMGEN_CALLER;
  Fiber& fiber = *machine.current;
  visit_box(map, element, line, shared, pc, [&](unsigned char* to, const unsigned char* place, int64_t there, int64_t) {
    if (there == 0) return;
    const Copy one{to, place, static_cast<uint32_t>(there), pc};
    check_read_for("a tensor copy reads", reinterpret_cast<uintptr_t>(place), one.bytes, pc);
    check_stored(one, pc);
    trace_step(reinterpret_cast<uintptr_t>(to), one.bytes, kWrite);
    check_access(reinterpret_cast<uintptr_t>(to), one.bytes, kWrite, false, pc);
    fiber.stores.push_back(one);
  });
}

NORMGEN_API void normgen_cpu_tensor_stores_read() {
  Fiber& fiber = *machine.current;
  for (const Copy& one : fiber.stores) {
    check_read_for("a tensor copy reads", reinterpret_cast<uintptr_t>(one.from), one.bytes, one.pc);
    fiber.block->stored.emplace_back(one.to, std::vector<unsigned char>(one.from, one.from + one.bytes));
  }
  fiber.stores.clear();
}

// What is asked for in L2 need not be awaited: no value is read. The bytes must be the kernel's own all the same.
NORMGEN_API void normgen_cpu_prefetch(const void* from, unsigned bytes) {
  const uintptr_t pc = NORMGEN_CALLER, address = reinterpret_cast<uintptr_t>(from);
  check_alignment(address, 16, "the address of a bulk prefetch", pc);
  if (bytes % 16 != 0) fatal_fault(kMisaligned, pc, "a bulk prefetch takes a multiple of 16 bytes, and this one %u", bytes);
  Fiber& fiber = *machine.current;
  trace_step(address, bytes, kTracedPrefetch);
  const bool met = std::exchange(fiber.dependency_met, true);
  check_access(address, bytes, kRead, false, pc);
  fiber.dependency_met = met;
}

NORMGEN_API void normgen_cpu_cluster_send(void* own, unsigned rank, const void* value, unsigned bytes,
                                          unsigned long long* address) {
  const uintptr_t pc = NORMGEN_CALLER;
  const uintptr_t to = reinterpret_cast<uintptr_t>(own);
  Block& target = block_of_cluster(to, rank, pc);
  check_shared_extent(to, bytes, kWrite, pc);
  if (bytes % 4 != 0 || bytes > kMaxSent) fatal_fault(kMisaligned, pc, "sends %u bytes: words of 4, at most %u", bytes, kMaxSent);
  Mbarrier& mbarrier = find_mbarrier(target, address, pc);
  if (&target != machine.current->block) check_cluster_fence(mbarrier, pc);
  mark_sent(target, shadow_index(to), bytes, pc);
  mbarrier.sent.push_back(Sent{to, bytes, {}});
  std::memcpy(mbarrier.sent.back().value, value, bytes);
  const Fiber& fiber = *machine.current;
  mbarrier.told.push_back(Knowledge{static_cast<int>(fiber.stamp_thread / kWarp), fiber.warp_clock});
  if (has_waiter(target, mbarrier)) settle(target, mbarrier, true);
}

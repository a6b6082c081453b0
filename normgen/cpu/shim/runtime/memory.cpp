// What one access may touch: tensor extents, alignment, and the state of every byte of shared memory.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace normgen_cpu {

namespace {

const char* verb(int access) { return (access & kAtomic) != 0 ? "atomic update of" : (access & kWrite) != 0 ? "writes" : "reads"; }

bool region_holds(const Region& region, uintptr_t address, size_t bytes) {
  const int64_t offset = static_cast<int64_t>(address - region.base);
  if (offset < 0 || region.rows == 0) return false;
  const int64_t size = static_cast<int64_t>(bytes);
  if (region.row_bytes == region.pitch_bytes || region.rows == 1) {
    return offset + size <= (region.rows - 1) * region.pitch_bytes + region.row_bytes;
  }
  const int64_t row = offset / region.pitch_bytes;
  return row < region.rows && offset - row * region.pitch_bytes + size <= region.row_bytes;
}

[[noreturn]] void fault_outside(uintptr_t address, size_t bytes, int access, uintptr_t pc) {
  const Region* nearest = nullptr;
  int64_t distance = 1 << 20;
  for (int i = 0; i < machine.launch.region_count; ++i) {
    const Region& region = machine.launch.regions[i];
    const int64_t offset = static_cast<int64_t>(address - region.base);
    const int64_t extent = region.rows * region.pitch_bytes;
    const int64_t outside = offset < 0 ? -offset : offset < extent ? 0 : offset - extent;
    if (outside < distance) {
      nearest = &region;
      distance = outside;
    }
  }
  if (nearest == nullptr) {
    fatal_fault(kOutOfBounds, pc, "%s %zu bytes at an address that belongs to no tensor: %#llx", verb(access), bytes,
                static_cast<unsigned long long>(address));
  }
  const long long offset = static_cast<long long>(address - nearest->base);
  const long long pitch = nearest->pitch_bytes > 0 ? nearest->pitch_bytes : 1;
  const long long row = offset >= 0 ? offset / pitch : -((-offset + pitch - 1) / pitch);
  fatal_fault(kOutOfBounds, pc, "%s %zu bytes at row %lld, byte %lld of '%s', which has %lld rows of %lld bytes",
              verb(access), bytes, row, offset - row * pitch, nearest->name, static_cast<long long>(nearest->rows),
              static_cast<long long>(nearest->row_bytes));
}

void check_global(uintptr_t address, size_t bytes, int access, uintptr_t pc) {
  static int last = 0;
  const Launch& launch = machine.launch;
  if (last >= launch.region_count) last = 0;
  const bool writes = (access & (kWrite | kAtomic)) != 0;
  const Region* read_only = nullptr;
  for (int i = 0; i < launch.region_count; ++i) {
    const int index = last + i < launch.region_count ? last + i : last + i - launch.region_count;
    const Region& region = launch.regions[index];
    if (!region_holds(region, address, bytes)) continue;
    if (writes && region.writable == 0) {
      read_only = &region;
      continue;
    }
    last = index;
    if (!machine.current->dependency_met && (writes || region.stable == 0)) {
      fatal_fault(kTooEarly, pc, "%s '%s' before waiting for the kernels in front, which may still use it", verb(access),
                  region.name);
    }
    if (region.writable != 0) check_cells(index, address, bytes, access, pc);
    return;
  }
  if (read_only != nullptr) fatal_fault(kOutOfBounds, pc, "writes to '%s', which the kernel only reads", read_only->name);
  fault_outside(address, bytes, access, pc);
}

uint64_t start_stamp(const Block& block) { return block.start_clock << kStampShift; }

void race(const char* what, uint64_t other, size_t index, uintptr_t pc) {
  if ((other & kThreadBits) == kAsyncThread) {
    record_fault(kSharedRace, pc, "%s shared byte %zu, which an asynchronous copy wrote, with no wait in between", what, index);
    return;
  }
  record_fault(kSharedRace, pc, "thread %d %s shared byte %zu, with no barrier since thread %d of block rank %d %s",
               machine.current->thread, what, index, static_cast<int>(other % kMaxThreads),
               static_cast<int>((other & kThreadBits) / kMaxThreads), what[0] == 'r' ? "wrote it" : "touched it");
}

bool fast_ordered(uint64_t stamp, uint64_t mine) {
  if (((stamp ^ mine) & kThreadBits) == 0) return true;
  const bool same_block = ((stamp ^ mine) & kThreadBits & ~static_cast<uint64_t>(kMaxThreads - 1)) == 0;
  return same_block && stamp < machine.current->block->barrier_clock << kStampShift;
}

bool ordered_after_write(uint64_t stamp, uint64_t mine, int access) {
  if (fast_ordered(stamp, mine)) return true;
  if ((access & kAtomic) != 0 && (stamp & kAtomicFlag) != 0) return true;
  return is_ordered(stamp, *machine.current);
}

// A second thread reads byte i, as part of what it reads up to `end`: keep every reader, a mask per warp, until a barrier
// orders them. Bytes that were read by the same threads so far share what is kept. Returns the first byte that does not.
size_t add_reader(Block& block, size_t i, size_t end, uint64_t mine) {
  Shadow& shadow = block.shadow;
  const uint64_t old = shadow.read[i], clock = mine >> kStampShift;
  const bool is_many = (old & kThreadBits) == kManyReaders;
  const uint32_t known = shadow.readers[i];
  const auto is_alike = [&](size_t j) { return shadow.read[j] == old && (!is_many || shadow.readers[j] == known); };
  size_t behind = i + 1;
  while (behind < end && is_alike(behind)) ++behind;
  uint32_t own = known;
  if (!is_many || block.readers[known].first < i || block.readers[known].end > end) {  // others of its bytes are not read
    own = static_cast<uint32_t>(block.readers.size());
    block.readers.push_back(is_many ? block.readers[known] : Readers{});
    Readers& fresh = block.readers.back();
    fresh.first = i;
    fresh.end = behind;
    if (!is_many) {
      const int thread = static_cast<int>(old % kMaxThreads);
      fresh.mask[thread / kWarp] = 1u << (thread % kWarp);
      fresh.clock[thread / kWarp] = old >> kStampShift;
    }
  }
  Readers& readers = block.readers[own];
  const Fiber& fiber = *machine.current;
  const int warp = fiber.warp();
  if (readers.clock[warp] < fiber.warp_clock) readers.mask[warp] = 0;
  readers.mask[warp] |= 1u << fiber.lane();
  readers.clock[warp] = clock;
  for (size_t j = i; j < behind; ++j) {
    shadow.read[j] = clock << kStampShift | kManyReaders;
    shadow.readers[j] = own;
  }
  return behind;
}

// A reader that the present thread has not been ordered after, or 0.
uint64_t unordered_reader(const Block& block, size_t i) {
  const uint64_t stamp = block.shadow.read[i];
  const Fiber& fiber = *machine.current;
  if (&block == fiber.block && stamp < block.barrier_clock << kStampShift) return 0;
  if ((stamp & kThreadBits) != kManyReaders) return is_ordered(stamp, fiber) ? 0 : stamp;
  const Readers& readers = block.readers[block.shadow.readers[i]];
  for (int warp = 0; warp < kMaxWarps; ++warp) {
    for (uint32_t mask = readers.mask[warp]; mask != 0; mask &= mask - 1) {
      const uint64_t thread = static_cast<uint64_t>(block.rank) * kMaxThreads + warp * kWarp + __builtin_ctz(mask);
      const uint64_t one = readers.clock[warp] << kStampShift | thread;
      if (!is_ordered(one, fiber)) return one;
    }
  }
  return 0;
}

// Whether byte i, one of `bytes`, has been written and the present thread comes after that.
bool is_readable(const Block& block, size_t i, size_t bytes, int access, uintptr_t pc) {
  const uint64_t written = block.shadow.write[i];
  if (written < start_stamp(block)) {
    record_fault(kUninitialisedShared, pc, "thread %d reads %zu bytes at shared byte %zu before anyone wrote them",
                 machine.current->thread, bytes, i);
    return false;
  }
  if ((written & kInFlightFlag) != 0) {
    record_fault(kUninitialisedShared, pc,
                 "thread %d reads %zu bytes at shared byte %zu before the asynchronous copy into them was waited for",
                 machine.current->thread, bytes, i);
    return false;
  }
  if (ordered_after_write(written, my_stamp(), access)) return true;
  race("reads", written, i, pc);
  return false;
}

void check_shared_read(Block& block, size_t index, size_t bytes, int access, uintptr_t pc) {
  Shadow& shadow = block.shadow;
  const uint64_t mine = my_stamp();
  size_t end = index;
  while (end < index + bytes && is_readable(block, end, bytes, access, pc)) ++end;
  if ((access & kAtomic) != 0) return;
  for (size_t i = index; i < end;) {
    const uint64_t read = shadow.read[i];
    if (read < block.barrier_clock << kStampShift || ((read ^ mine) & kThreadBits) == 0) {
      shadow.read[i++] = mine;
    } else {
      i = add_reader(block, i, end, mine);
    }
  }
}

void check_shared_write(Block& block, size_t index, size_t bytes, int access, uint64_t flags, uintptr_t pc) {
  Shadow& shadow = block.shadow;
  const uint64_t mine = my_stamp() | flags, start = start_stamp(block);
  bool sound = true;
  for (size_t i = index; i < index + bytes; ++i) {
    const uint64_t written = shadow.write[i];
    if (sound && written >= start) {
      if ((written & kInFlightFlag) != 0) {
        record_fault(kSharedRace, pc, "thread %d writes shared byte %zu while an asynchronous copy into it is under way",
                     machine.current->thread, i);
        sound = false;
      } else if (!ordered_after_write(written, mine, access)) {
        race("writes", written, i, pc);
        sound = false;
      }
    }
    if (sound && shadow.read[i] >= start) {
      const uint64_t reader = unordered_reader(block, i);
      if (reader != 0) {
        race("writes", reader, i, pc);
        sound = false;
      }
    }
    shadow.write[i] = mine;
    shadow.read[i] = 0;
  }
}

void check_foreign_stack(uintptr_t address, size_t bytes, int access, uintptr_t pc) {
  if (address >= machine.stacks_begin && address < machine.stacks_end) {
    fatal_fault(kOutOfBounds, pc, "%s %zu bytes of another thread's local memory", verb(access), bytes);
  }
}

void yield_now_and_then() {
  constexpr uint64_t kAccessesPerTurn = 1 << 16;  // so that a thread which spins on memory lets the others run
  if (machine.accesses_until_yield-- > 0) return;
  machine.accesses_until_yield = kAccessesPerTurn;
  machine.current->block->ready.push_back(machine.current);
  leave_fiber();
}

}  // namespace

void check_shared_extent(uintptr_t address, size_t bytes, int access, uintptr_t pc) {
  const uintptr_t dynamic = reinterpret_cast<uintptr_t>(machine.dynamic);
  if (address - dynamic < 2 * kMaxShared) {
    const size_t offset = address - dynamic, extent = static_cast<size_t>(machine.launch.dynamic_bytes);
    if (offset + bytes <= extent) return;
    fatal_fault(kOutOfBoundsShared, pc, "%s %zu bytes at byte %zu of dynamic shared memory, which has %zu bytes",
                verb(access), bytes, offset, extent);
  }
  const size_t offset = address - reinterpret_cast<uintptr_t>(machine.launch.shared_begin);
  for (size_t i = offset; i < offset + bytes; ++i) {
    if (i < machine.static_bytes && machine.redzone[i] == 0) continue;
    fatal_fault(kOutOfBoundsShared, pc, "%s %zu bytes of static shared memory outside every shared variable", verb(access),
                bytes);
  }
}

bool in_shared(uintptr_t address) {
  if (address - reinterpret_cast<uintptr_t>(machine.dynamic) < 2 * kMaxShared) return true;
  return address - reinterpret_cast<uintptr_t>(machine.launch.shared_begin) < machine.static_bytes;
}

size_t shadow_index(uintptr_t address) {
  const uintptr_t dynamic = reinterpret_cast<uintptr_t>(machine.dynamic);
  if (address - dynamic < 2 * kMaxShared) return machine.static_bytes + (address - dynamic);
  return address - reinterpret_cast<uintptr_t>(machine.launch.shared_begin);
}

void check_access(uintptr_t address, size_t bytes, int access, bool aligned, uintptr_t pc) {
  ++machine.report->accesses;
  if (time_is_up) fault_timeout(pc);
  yield_now_and_then();
  const bool shared = in_shared(address);
  if (!shared && address - machine.image_begin < machine.image_end - machine.image_begin) return;  // constants
  check_foreign_stack(address, bytes, access, pc);
  if (shared) {
    check_shared_extent(address, bytes, access, pc);
  } else {
    check_global(address, bytes, access, pc);
  }
  if (aligned && (address & (bytes - 1)) != 0) {
    fatal_fault(kMisaligned, pc, "%s %zu bytes at an address that is a multiple of %zu only", verb(access), bytes,
                static_cast<size_t>(address & -address));
  }
  if (!shared) return;
  Block& block = *machine.current->block;
  const size_t index = shadow_index(address);
  if ((access & (kRead | kAtomic)) != 0) check_shared_read(block, index, bytes, access, pc);
  if ((access & kAtomic) != 0) check_shared_write(block, index, bytes, access, kAtomicFlag, pc);
  if ((access & kWrite) != 0) check_shared_write(block, index, bytes, access, 0, pc);
}

// Of shared memory, by tensor cores or the copy engine on behalf of threads: none lets others run meanwhile.
void check_read_for(const char* reader, uintptr_t address, size_t bytes, uintptr_t pc) {
  if (!in_shared(address)) fatal_fault(kOutOfBoundsShared, pc, "%s outside shared memory", reader);
  check_shared_extent(address, bytes, kRead, pc);
  check_shared_read(*machine.current->block, shadow_index(address), bytes, kRead, pc);
}

void trace_step(uintptr_t address, size_t bytes, int kind, int other) {
  const Launch& launch = machine.launch;
  if (launch.trace == nullptr) return;
  const uint64_t number = machine.report->traced++;
  if (number >= static_cast<uint64_t>(launch.trace_capacity)) return;
  const Fiber& fiber = *machine.current;
  if (address != 0 && in_shared(address)) other = 1;
  launch.trace[number] = Traced{address, static_cast<int>(bytes), kind, fiber.block->index, fiber.thread, other};
}

void mark_in_flight(const Copy& copy, bool reads, uintptr_t pc) {
  if (reads) {
    trace_step(reinterpret_cast<uintptr_t>(copy.from), copy.bytes, kTracedCopy);
    check_access(reinterpret_cast<uintptr_t>(copy.from), copy.bytes, kRead, false, pc);
  }
  check_shared_extent(reinterpret_cast<uintptr_t>(copy.to), copy.bytes, kWrite, pc);
  Block& block = *machine.current->block;
  check_shared_write(block, shadow_index(reinterpret_cast<uintptr_t>(copy.to)), copy.bytes, kWrite, kInFlightFlag, pc);
  std::memset(copy.to, kPoison, copy.bytes);
}

void land(const Copy& copy, uint64_t thread) {
  std::memcpy(copy.to, copy.from, copy.bytes);
  for (uint32_t i = 0; copy.rounds && i < copy.bytes; i += 4) {  // to nearest, ties to even; what is no number stays
    uint32_t bits;
    std::memcpy(&bits, copy.to + i, sizeof bits);
    if ((bits >> 23 & 255u) != 255u) bits = (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu;
    std::memcpy(copy.to + i, &bits, sizeof bits);
  }
  land_bytes(*machine.current->block, shadow_index(reinterpret_cast<uintptr_t>(copy.to)), copy.bytes, thread);
}

void land_bytes(Block& block, size_t index, size_t bytes, uint64_t thread) {
  for (size_t i = index; i < index + bytes; ++i) {
    block.shadow.write[i] = machine.clock << kStampShift | thread;
    block.shadow.read[i] = 0;
  }
}

void check_remote_write(Block& target, size_t index, size_t bytes, uintptr_t pc) {
  check_shared_write(target, index, bytes, kWrite, 0, pc);
}

void mark_sent(Block& target, size_t index, size_t bytes, uintptr_t pc) {
  check_shared_write(target, index, bytes, kWrite, kInFlightFlag, pc);
}

void poison_shared(Block& block) {
  Shadow& shadow = block.shadow;
  if (shadow.write == nullptr) {
    constexpr size_t kCells = 3 * kMaxShared;
    auto cells = [](size_t size) {
      void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) std::abort();
      return memory;
    };
    shadow.write = static_cast<uint64_t*>(cells(kCells * sizeof(uint64_t)));
    shadow.read = static_cast<uint64_t*>(cells(kCells * sizeof(uint64_t)));
    shadow.readers = static_cast<uint32_t*>(cells(kCells * sizeof(uint32_t)));
  }
  const size_t dynamic = static_cast<size_t>(machine.launch.dynamic_bytes);
  if (machine.launch.cluster == 1) {
    std::memset(machine.launch.shared_begin, kPoison, machine.static_bytes);
    std::memset(machine.dynamic, kPoison, dynamic);
  } else {
    block.saved_static.assign(machine.static_bytes, kPoison);
    block.saved_dynamic.assign(dynamic, kPoison);
  }
}

}  // namespace normgen_cpu

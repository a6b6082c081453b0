// Global memory that a launch writes: who touched a cell last, and which blocks an atomic counter orders.
//
// Clusters run one after the other, and yet a conflict of two of them is seen: a stamp tells which cluster it is from.
// An access of one cluster comes before an access of another one in one way only: a __threadfence() behind the first
// access, an update of an integer counter behind that fence, an update of the same counter by the other cluster, or a
// read that waits for it, a __threadfence() behind that, and then the second access. Barriers may lie between any two of
// them. So it is with blocks of one cooperative launch, which are alive together.
//
// Of two threads of one block only conflicting writes count: where rows share a block, threads past the last row read
// what that row's owner writes, and drop it.
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "runtime.h"

namespace normgen_cpu {

namespace {

struct Touch {
  uint64_t stamp;  // 0: none in this launch
  uint32_t pc;     // offset into the kernel's image
};

struct Cell {
  uint64_t write, read;  // stamps of the last ones, by the cluster that runs
  uint32_t write_pc, read_pc;
  uint32_t past;  // index into `pasts`, or 0
};

struct Past {  // what only few cells need
  Touch write, read;  // the last ones by the clusters before
  int record;         // of the updates of a counter, or -1
};

struct Release {  // what an update of a counter tells
  uint64_t cluster_clock, clock, thread;
  Fence reached;                 // what barriers put in front of it, fenced or not
  std::vector<uint64_t> fenced;  // by thread of the cluster: up to which clock it tells of that thread; or empty
  bool turn;                     // the counter's top bit behind it
};

struct Acquire {  // an update of a counter by the cluster that runs, which has seen the counter's first releases
  uint64_t stamp;
  int record;
  size_t releases;
};

struct Known {  // a fence behind an acquire: whoever comes after the fence may rely on the releases
  uint64_t stamp;
  int acquire;
};

struct Start {  // of a cluster
  uint64_t clock;
  int first_block;
};

Cell* cells = nullptr;
size_t cell_capacity = 0;
std::vector<size_t> first_cells;  // by region
std::vector<Past> pasts;
std::vector<std::vector<Release>> records;
std::vector<Start> starts;
std::vector<Acquire> acquires;
std::vector<Known> known;

void reserve_cells(size_t count) {
  if (count <= cell_capacity) return;  // cells of earlier launches are told by their stamps
  if (cells != nullptr) munmap(cells, cell_capacity * sizeof(Cell));
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, count * sizeof(Cell), PROT_READ | PROT_WRITE, flags, -1, 0);
  const bool is_there = memory != MAP_FAILED;  // without the address space, nobody looks for races
  cells = is_there ? static_cast<Cell*>(memory) : nullptr;
  cell_capacity = is_there ? count : 0;
}

size_t slot_of(uint64_t stamp) {  // of a thread among those of its cluster
  const size_t thread = stamp & kThreadBits;
  return thread / kMaxThreads * machine.launch.threads + thread % kMaxThreads;
}

bool tells(const Release& release, uint64_t stamp) {
  return !release.fenced.empty() && stamp >> kStampShift < release.fenced[slot_of(stamp)];
}

// The first of the releases behind that access by its cluster; `end` without any.
const Release* release_behind(const Release* begin, const Release* end, uint64_t stamp) {
  const uint64_t clock = stamp >> kStampShift;
  begin = std::upper_bound(begin, end, clock, [](uint64_t time, const Release& release) { return time < release.clock; });
  return begin != end && begin->cluster_clock <= clock ? begin : end;
}

bool tells(const Acquire& acquire, uint64_t stamp, int record) {
  const Release* begin = records[acquire.record].data();
  const Release* end = begin + acquire.releases;
  const Release* release = release_behind(begin, end, stamp);
  if (release == end) return false;
  if (record == acquire.record && (stamp & kAtomicFlag) != 0) return true;  // an update of that counter itself
  for (const uint64_t cluster = release->cluster_clock; release != end && release->cluster_clock == cluster; ++release) {
    if (tells(*release, stamp)) return true;
  }
  return false;
}

bool is_told(uint64_t stamp, int record) {
  Fiber& fiber = *machine.current;
  for (const int acquire : fiber.acquired) {
    if (tells(acquires[acquire], stamp, record)) return true;
  }
  for (auto one = known.rbegin(); one != known.rend(); ++one) {  // the last ones tell most
    if (!is_ordered(one->stamp, fiber) || !tells(acquires[one->acquire], stamp, record)) continue;
    fiber.acquired.push_back(one->acquire);
    return true;
  }
  return false;
}

bool comes_behind(uint64_t stamp, int record) {
  if (stamp >> kStampShift >= machine.cluster_clock) {
    if (fast_ordered(stamp, my_stamp()) || is_ordered(stamp, *machine.current)) return true;
  }
  return is_told(stamp, record);
}

int block_of(uint64_t stamp) {
  const uint64_t clock = stamp >> kStampShift;
  const auto behind = std::upper_bound(starts.begin(), starts.end(), clock,
                                       [](uint64_t time, const Start& start) { return time < start.clock; });
  return std::prev(behind)->first_block + static_cast<int>((stamp & kThreadBits) / kMaxThreads);
}

// What an engineer has to add: a fence on either side of a counter that both blocks update, or a way to order them.
const char* missing_link(uint64_t stamp, bool* is_fence) {
  *is_fence = false;
  for (const Acquire& acquire : acquires) {
    if (!is_ordered(acquire.stamp, *machine.current)) continue;
    const Release* begin = records[acquire.record].data();
    const Release* end = begin + acquire.releases;
    const Release* release = release_behind(begin, end, stamp);
    if (release == end) continue;
    if (!is_within(stamp, release->reached, release->thread)) {
      return "no barrier stands between that access and the atomic update that tells of it";
    }
    *is_fence = true;
    if (tells(*release, stamp)) return "no __threadfence() follows the atomic update that tells of it";
    return "no __threadfence() stands between that access and the atomic update that tells of it";
  }
  return "no barrier and no counter orders the two";
}

const char* deed(int access, bool is_past) {
  if ((access & kAtomic) != 0) return is_past ? "updated atomically" : "updates atomically";
  if ((access & kWrite) != 0) return is_past ? "wrote" : "writes";
  return is_past ? "read" : "reads";
}

void global_race(const Region& region, uint64_t offset, Touch other, int other_access, int access, uintptr_t pc) {
  bool is_fence;
  const char* link = missing_link(other.stamp, &is_fence);
  const int64_t pitch = std::max<int64_t>(region.pitch_bytes, 1);
  FaultRecord* fault = record_fault(
      is_fence ? kMissingFence : kGlobalRace, pc, "%s row %lld, byte %lld of '%s', which thread %d of block %d %s: %s",
      deed(access, false), static_cast<long long>(offset / pitch), static_cast<long long>(offset % pitch), region.name,
      static_cast<int>(other.stamp % kMaxThreads), block_of(other.stamp), deed(other_access, true), link);
  if (fault->earlier_pc == 0) fault->earlier_pc = other.pc;
}

bool is_in_this_block(uint64_t stamp) {
  const int rank = static_cast<int>((stamp & kThreadBits) / kMaxThreads);
  return stamp >> kStampShift >= machine.cluster_clock && rank == machine.current->block->rank;
}

bool conflicts_with_write(uint64_t write, int access, int record) {
  if (write == 0 || ((access & kAtomic) != 0 && (write & kAtomicFlag) != 0)) return false;
  if (access == kRead && is_in_this_block(write)) return false;
  return !comes_behind(write, record);
}

bool conflicts_with_read(uint64_t read, int access) {
  return read != 0 && access != kRead && !is_in_this_block(read) && !comes_behind(read, -1);
}

uint32_t make_past(Cell& cell) {
  if (cell.past == 0) {
    cell.past = static_cast<uint32_t>(pasts.size());
    pasts.push_back(Past{{}, {}, -1});
  }
  return cell.past;
}

// Forgets the launches before, and tells this cluster's accesses from those of the clusters before.
void renew(Cell& cell) {
  const uint64_t launch = machine.launch_clock << kStampShift, cluster = machine.cluster_clock << kStampShift;
  if (cell.write < launch && cell.read < launch) {
    cell = Cell{};
    return;
  }
  if (cell.write != 0 && cell.write < cluster) {
    pasts[make_past(cell)].write = Touch{cell.write, cell.write_pc};
    cell.write = 0;
  }
  if (cell.read != 0 && cell.read < cluster) {
    pasts[make_past(cell)].read = Touch{cell.read, cell.read_pc};
    cell.read = 0;
  }
}

bool check_cell(const Cell& cell, const Region& region, uint64_t offset, int access, uintptr_t pc) {
  static const Past none{{}, {}, -1};
  const Past& past = cell.past != 0 ? pasts[cell.past] : none;
  Touch other{};
  int other_access = kRead;
  if (conflicts_with_write(cell.write, access, past.record)) {
    other = Touch{cell.write, cell.write_pc};
  } else if (conflicts_with_write(past.write.stamp, access, past.record)) {
    other = past.write;
  }
  if (other.stamp != 0) {
    other_access = (other.stamp & kAtomicFlag) != 0 ? kAtomic : kWrite;
  } else if (conflicts_with_read(cell.read, access)) {
    other = Touch{cell.read, cell.read_pc};
  } else if (conflicts_with_read(past.read.stamp, access)) {
    other = past.read;
  }
  if (other.stamp == 0) return true;
  global_race(region, offset, other, other_access, access, pc);
  return false;
}

void stamp_cell(Cell& cell, int access, uint64_t stamp, uint32_t pc) {
  if (access == kRead) {
    cell.read = stamp;
    cell.read_pc = pc;
    return;
  }
  cell.write = stamp;
  cell.write_pc = pc;
  cell.read = 0;
  if (access == kWrite && cell.past != 0) pasts[cell.past] = Past{{}, {}, -1};  // a counter that is set starts anew
}

Cell& cell_at(uintptr_t address) {
  for (int i = 0;; ++i) {  // the access has been checked: some region holds it
    const Region& region = machine.launch.regions[i];
    if (region.writable == 0 || !region_holds(region, address, 1)) continue;
    return cells[first_cells[i] + (address - region.base) / region.cell_bytes];
  }
}

// Raises the clock of each thread of a block to what those events tell of it, and the events in front of them.
void raise_by_events(const Block& block, std::vector<int> open, uint64_t* fenced) {
  std::vector<bool> seen(block.events.size(), false);
  while (!open.empty()) {
    const int index = open.back();
    open.pop_back();
    if (index < 0 || seen[index]) continue;
    seen[index] = true;
    const Event& event = block.events[index];
    for (const Lanes& lanes : event.lanes) {
      for (uint32_t mask = lanes.mask; mask != 0; mask &= mask - 1) {
        uint64_t& clock = fenced[lanes.warp * kWarp + __builtin_ctz(mask)];
        clock = std::max(clock, event.time);
      }
    }
    open.insert(open.end(), event.before.begin(), event.before.end());
  }
}

// The clocks up to which fences in front of that fiber's present cover the accesses of each thread; empty without fences.
std::vector<uint64_t> fenced_before(const Fiber& fiber) {
  const size_t threads = machine.launch.threads;
  bool any = false;
  std::vector<uint64_t> fenced(machine.cluster.size() * threads, 0);
  for (const Block* block : machine.cluster) {
    uint64_t warps[kMaxWarps] = {}, whole = 0;
    std::vector<int> events;
    for (const Fiber* one : block->fibers) {
      const Fence& fence = one->fence;
      if (fence.clock == 0 || !is_ordered(stamp_of(*one, fence.clock), fiber)) continue;
      any = true;
      fenced[block->rank * threads + one->thread] = fence.clock;
      warps[one->warp()] = std::max(warps[one->warp()], fence.warp);
      whole = std::max(whole, fence.barrier);
      if (fence.clock > block->barrier_clock) events.push_back(fence.event);
    }
    for (size_t thread = 0; thread < threads; ++thread) {
      uint64_t& clock = fenced[block->rank * threads + thread];
      clock = std::max({clock, warps[thread / kWarp], whole});
    }
    raise_by_events(*block, std::move(events), fenced.data() + block->rank * threads);
  }
  return any ? fenced : std::vector<uint64_t>();
}

}  // namespace

void start_global_launch() {
  machine.launch_clock = tick();
  pasts.assign(1, Past{});
  records.clear();
  starts.clear();
  first_cells.clear();
  size_t count = 0;
  for (int i = 0; i < machine.launch.region_count; ++i) {
    const Region& region = machine.launch.regions[i];
    first_cells.push_back(count);
    if (region.writable != 0) count += region.rows * region.pitch_bytes / region.cell_bytes + 1;
  }
  reserve_cells(count);
}

void start_global_cluster(int first_block) {
  machine.cluster_clock = tick();
  starts.push_back(Start{machine.cluster_clock, first_block});
  acquires.clear();
  known.clear();
}

void check_cells(int region_index, uintptr_t address, size_t bytes, int access, uintptr_t pc) {
  if (cells == nullptr) return;
  const Region& region = machine.launch.regions[region_index];
  const uint64_t offset = address - region.base;
  const size_t first = offset / region.cell_bytes, last = (offset + bytes - 1) / region.cell_bytes;
  const uint64_t stamp = my_stamp() | ((access & kAtomic) != 0 ? kAtomicFlag : 0);
  bool sound = true;
  for (size_t i = first; i <= last; ++i) {
    Cell& cell = cells[first_cells[region_index] + i];
    renew(cell);
    sound = sound && check_cell(cell, region, i * region.cell_bytes, access, pc);
    stamp_cell(cell, access, stamp, static_cast<uint32_t>(pc - machine.image_begin));
  }
}

// An update of a counter: it tells what the fences before it cover, and knows what the updates before it told.
void meet_at_counter(uintptr_t address, bool turn) {
  if (cells == nullptr) return;
  Past& past = pasts[make_past(cell_at(address))];
  if (past.record < 0) {
    past.record = static_cast<int>(records.size());
    records.emplace_back();
  }
  std::vector<Release>& releases = records[past.record];
  const Fiber& fiber = *machine.current;
  if (!releases.empty()) acquires.push_back(Acquire{my_stamp(), past.record, releases.size()});
  const Fence reached = fence_now(fiber);
  releases.push_back(Release{machine.cluster_clock, reached.clock, fiber.stamp_thread, reached, fenced_before(fiber), turn});
}

// A read that waits for the top bit of a counter to turn: it knows what the updates up to that one told. Those behind it
// may have come before this thread looked, or not.
void rely_on_counter(uintptr_t address, bool before) {
  if (cells == nullptr) return;
  const int record = pasts[make_past(cell_at(address))].record;
  if (record < 0) return;
  const std::vector<Release>& releases = records[record];
  size_t known = releases.size();
  while (known > 1 && releases[known - 2].turn != before) --known;
  acquires.push_back(Acquire{my_stamp(), record, known});
}

// A fence behind acquires: this thread may rely on them, and so may whoever comes after the fence.
void acquire_counters(Fiber& fiber) {
  for (size_t i = 0; i < acquires.size(); ++i) {
    const int acquire = static_cast<int>(i);
    if (std::find(fiber.acquired.begin(), fiber.acquired.end(), acquire) != fiber.acquired.end()) continue;
    if (!is_ordered(acquires[i].stamp, fiber)) continue;
    fiber.acquired.push_back(acquire);
    known.push_back(Known{stamp_of(fiber, fiber.fence.clock), acquire});
  }
}

}  // namespace normgen_cpu

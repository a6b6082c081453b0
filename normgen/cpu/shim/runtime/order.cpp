// Which access happened before which: block barriers, warp barriers, and a small graph for the rest.
#include "runtime.h"

namespace normgen_cpu {

uint64_t tick() { return ++machine.clock; }

uint64_t stamp_of(const Fiber& fiber, uint64_t clock) { return clock << kStampShift | fiber.stamp_thread; }

uint64_t my_stamp() { return stamp_of(*machine.current, machine.clock); }

int add_event(Block& block, std::vector<Lanes> lanes, std::vector<int> before, bool asynchronous) {
  block.events.push_back(Event{tick(), std::move(lanes), std::move(before), asynchronous});
  return static_cast<int>(block.events.size()) - 1;
}

namespace {

bool covers(const Event& event, uint64_t thread) {
  if (thread == kAsyncThread) return event.asynchronous;
  const int in_block = static_cast<int>(thread % kMaxThreads);
  for (const Lanes& lanes : event.lanes) {
    if (lanes.warp == in_block / kWarp && (lanes.mask >> (in_block % kWarp) & 1u) != 0) return true;
  }
  return false;
}

// Backwards from the reader's last event; an event older than the access cannot know of it.
bool search(const Block& block, int from, uint64_t thread, uint64_t clock) {
  static std::vector<int> open;
  static std::vector<uint64_t> seen;  // by events: the last search that came there
  static uint64_t searches = 0;
  ++searches;
  if (seen.size() < block.events.size()) seen.resize(block.events.size(), 0);
  open.assign(1, from);
  while (!open.empty()) {
    const int index = open.back();
    open.pop_back();
    if (index < 0 || seen[index] == searches) continue;
    seen[index] = searches;
    const Event& event = block.events[index];
    if (event.time <= clock) continue;
    if (covers(event, thread)) return true;
    open.insert(open.end(), event.before.begin(), event.before.end());
  }
  return false;
}

struct Asked {
  uint64_t event = 0, thread = 0, clock = 0;
  bool reached = false;
};

// The bytes of a vector, and the lanes of a warp, ask the same. No two events have one time, and what an event knows of
// stays as it is.
bool reaches(const Block& block, int from, uint64_t thread, uint64_t clock) {
  static Asked known[1 << 12];
  if (from < 0) return false;
  const uint64_t event = block.events[from].time;
  const uint64_t mixed = (event * 0x9e3779b97f4a7c15u ^ clock) * 0xbf58476d1ce4e5b9u ^ thread * 0x94d049bb133111ebu;
  Asked& last = known[mixed >> 52];
  if (last.event != event || last.thread != thread || last.clock != clock) {
    last = Asked{event, thread, clock, search(block, from, thread, clock)};
  }
  return last.reached;
}

}  // namespace

bool is_ordered(uint64_t stamp, const Fiber& reader) {
  const uint64_t thread = stamp & kThreadBits, clock = stamp >> kStampShift;
  const Block& block = *reader.block;
  if (thread == reader.stamp_thread) return true;
  const bool same_block = thread == kAsyncThread || static_cast<int>(thread / kMaxThreads) == block.rank;
  if (same_block) {
    if (clock < block.barrier_clock) return true;
    const bool same_warp = thread != kAsyncThread && thread / kWarp == reader.stamp_thread / kWarp;
    if (same_warp && clock < reader.warp_clock) return true;
    if (reaches(block, reader.event, thread, clock)) return true;
  }
  if (thread == kAsyncThread) return false;
  const size_t warp = thread / kWarp;
  if (warp < reader.known.size() && clock < reader.known[warp]) return true;
  if (reader.cluster_phase == 0) return false;
  const std::vector<uint64_t>& arrivals = machine.arrivals[(reader.cluster_phase - 1) % 2];
  return thread < arrivals.size() && clock < arrivals[thread];
}

}  // namespace normgen_cpu

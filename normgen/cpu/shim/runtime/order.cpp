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
bool reaches(const Block& block, int from, uint64_t thread, uint64_t clock) {
  std::vector<int> open{from};
  std::vector<bool> seen(block.events.size(), false);
  while (!open.empty()) {
    const int index = open.back();
    open.pop_back();
    if (index < 0 || seen[index]) continue;
    seen[index] = true;
    const Event& event = block.events[index];
    if (event.time <= clock) continue;
    if (covers(event, thread)) return true;
    open.insert(open.end(), event.before.begin(), event.before.end());
  }
  return false;
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

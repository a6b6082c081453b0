// Warp collectives: a lane publishes its value and waits until every live lane of the mask has come.
#include <cstring>

#include "runtime.h"

namespace normgen_cpu {

namespace {

Fiber* lane_of(Block& block, int warp, int lane) {
  const size_t thread = static_cast<size_t>(warp) * kWarp + lane;
  return thread < block.fibers.size() ? block.fibers[thread] : nullptr;
}

bool is_complete(Block& block, int warp, const Request& request, uint32_t expected) {
  if ((expected & ~block.waiting[warp]) != 0) return false;
  for (uint32_t mask = expected; mask != 0; mask &= mask - 1) {
    const Fiber* fiber = lane_of(block, warp, __builtin_ctz(mask));
    if (fiber->request.kind != request.kind || fiber->request.mask != request.mask) return false;
  }
  return true;
}

void deliver(Block& block, int warp, uint32_t expected) {
  uint32_t ballot = 0;
  for (uint32_t mask = expected; mask != 0; mask &= mask - 1) {
    const int lane = __builtin_ctz(mask);
    if (lane_of(block, warp, lane)->request.predicate != 0) ballot |= 1u << lane;
  }
  for (uint32_t mask = expected; mask != 0; mask &= mask - 1) {
    Fiber* fiber = lane_of(block, warp, __builtin_ctz(mask));
    const Request& request = fiber->request;
    if (request.kind == 2) std::memcpy(request.out, &ballot, sizeof ballot);
    if (request.kind != 1) continue;
    if ((expected >> request.source & 1u) == 0) {
      record_fault(kDivergentBarrier, fiber->pc, "lane %d reads the value of lane %d, which %s", fiber->lane(),
                   request.source, (request.mask >> request.source & 1u) == 0 ? "is not in the mask" : "has exited");
      std::memset(request.out, kPoison, request.bytes);
      continue;
    }
    std::memcpy(request.out, lane_of(block, warp, request.source)->request.in, request.bytes);
  }
}

// Of a shuffle or a vote all lanes must execute the same one; a __syncwarp may meet any other of its mask.
void check_places(Block& block, int warp, uint32_t expected) {
  const Fiber* first = lane_of(block, warp, __builtin_ctz(expected));
  for (uint32_t mask = expected; mask != 0; mask &= mask - 1) {
    const Fiber* fiber = lane_of(block, warp, __builtin_ctz(mask));
    if (fiber->pc == first->pc) continue;
    fault_meeting(fiber->pc, first->pc, "lanes %d and %d of a warp exchange values at different calls", fiber->lane(),
                  first->lane());
  }
}

void order_lanes(Block& block, int warp, uint32_t expected) {
  std::vector<int> before;
  for (uint32_t mask = expected; mask != 0; mask &= mask - 1) {
    const int event = lane_of(block, warp, __builtin_ctz(mask))->event;
    if (event >= 0 && (before.empty() || before.back() != event)) before.push_back(event);
  }
  const int event = add_event(block, {Lanes{warp, expected}}, std::move(before), false);
  const bool whole = expected == block.live[warp];
  for (uint32_t mask = expected; mask != 0; mask &= mask - 1) {
    Fiber* fiber = lane_of(block, warp, __builtin_ctz(mask));
    fiber->event = event;
    if (whole) fiber->warp_clock = machine.clock;
  }
}

void deliver_matrices(Block& block, int warp, const Request& request, uint32_t expected) {
  if (expected != ~0u) {
    fatal_fault(kDivergentBarrier, lane_of(block, warp, __builtin_ctz(expected))->pc, "a matrix instruction needs all lanes of a warp, and has %d",
                __builtin_popcount(expected));
  }
  const Request* lanes[kWarp];
  for (int lane = 0; lane < kWarp; ++lane) lanes[lane] = &lane_of(block, warp, lane)->request;
  if (request.kind == 3) read_matrices(lanes);
  if (request.kind == 4) multiply_matrices(lanes);
  if (request.kind == 5) start_products(block, warp, lanes);
  if (request.kind == 7) {
    Products& products = block.products[warp];
    products.groups.push_back(std::move(products.open));
    products.open.clear();
  }
  if (request.kind == 6) {
    finish_products(block, warp, static_cast<size_t>(request.source));
    order_lanes(block, warp, expected);
  }
}

void complete(Block& block, int warp, const Request& request, uint32_t expected) {
  if (request.kind == 0) {
    order_lanes(block, warp, expected);
  } else if (request.kind >= 3) {
    check_places(block, warp, expected);
    deliver_matrices(block, warp, request, expected);
  } else {
    check_places(block, warp, expected);
    deliver(block, warp, expected);
  }
  block.waiting[warp] &= ~expected;
  for (uint32_t mask = expected; mask != 0; mask &= mask - 1) wake(lane_of(block, warp, __builtin_ctz(mask)));
}

void collective(const Request& request, uintptr_t pc) {
  Fiber& fiber = *machine.current;
  Block& block = *fiber.block;
  if (time_is_up) fault_timeout(pc);
  if ((request.mask >> fiber.lane() & 1u) == 0) {
    fatal_fault(kDivergentBarrier, pc, "lane %d calls a warp collective whose mask %#x does not name it", fiber.lane(),
                request.mask);
  }
  fiber.request = request;
  fiber.wait = Wait::kWarp;
  fiber.pc = pc;
  const int warp = fiber.warp();
  block.waiting[warp] |= 1u << fiber.lane();
  const uint32_t expected = request.mask & block.live[warp];
  if (is_complete(block, warp, request, expected)) complete(block, warp, request, expected);
  leave_fiber();
}

}  // namespace

void recheck_warp(Block& block, int warp) {
  for (uint32_t mask = block.waiting[warp]; mask != 0; mask &= mask - 1) {
    const int lane = __builtin_ctz(mask);
    if ((block.waiting[warp] >> lane & 1u) == 0) continue;  // an earlier one's collective was complete
    const Request request = lane_of(block, warp, lane)->request;
    const uint32_t expected = request.mask & block.live[warp];
    if (is_complete(block, warp, request, expected)) complete(block, warp, request, expected);
  }
}

}  // namespace normgen_cpu

using namespace normgen_cpu;

NORMGEN_API void normgen_cpu_syncwarp(unsigned mask) {
  collective(Request{0, mask, 0, 0, 0, nullptr, nullptr}, NORMGEN_CALLER);
}

NORMGEN_API void normgen_cpu_shuffle(unsigned mask, int source, const void* in, void* out, int bytes) {
  trace_step(0, static_cast<size_t>(bytes), kTracedShuffle, machine.current->warp() * kWarp + source);
  collective(Request{1, mask, source, bytes, 0, in, out}, NORMGEN_CALLER);
}

NORMGEN_API unsigned normgen_cpu_ballot(unsigned mask, int predicate) {
  unsigned result = 0;
  collective(Request{2, mask, 0, 0, predicate, nullptr, &result}, NORMGEN_CALLER);
  return result;
}

NORMGEN_API unsigned normgen_cpu_activemask() {
  return machine.current->block->live[machine.current->warp()];
}

// What memory holds is taken when all lanes have come.
NORMGEN_API void normgen_cpu_ldmatrix(const void* line, unsigned* parts, bool columns) {
  const uintptr_t pc = NORMGEN_CALLER, address = reinterpret_cast<uintptr_t>(line);
  if (!in_shared(address)) fatal_fault(kOutOfBoundsShared, pc, "ldmatrix reads outside shared memory");
  trace_step(address, 16, kRead);
  check_access(address, 16, kRead, true, pc);
  collective(Request{3, ~0u, 0, 0, columns, line, parts}, pc);
}

NORMGEN_API void normgen_cpu_wgmma(float* sums, const void* left, const void* right, bool adds, int columns, int kind) {
  const uintptr_t pc = NORMGEN_CALLER;
  Fiber& fiber = *machine.current;
  if (!fiber.sums_fenced) {
    record_fault(kMissingFence, pc, "tensor cores add to sums that thread %d has had, with no wgmma_fence() since", fiber.thread);
    fiber.sums_fenced = true;
  }
  const Product product{reinterpret_cast<uintptr_t>(left), reinterpret_cast<uintptr_t>(right), adds, static_cast<Factors>(kind), columns, {}, pc};
  collective(Request{5, ~0u, 0, 0, 0, &product, sums}, pc);
}

NORMGEN_API void normgen_cpu_wgmma_fence() { machine.current->sums_fenced = true; }

NORMGEN_API void normgen_cpu_wgmma_commit() {
  collective(Request{7, ~0u, 0, 0, 0, nullptr, nullptr}, NORMGEN_CALLER);
}

NORMGEN_API void normgen_cpu_wgmma_wait(int groups_left) {
  collective(Request{6, ~0u, groups_left, 0, 0, nullptr, nullptr}, NORMGEN_CALLER);
  if (groups_left == 0) machine.current->sums_fenced = false;
}

NORMGEN_API void normgen_cpu_mma(const unsigned* left, const unsigned* right, float* upper, float* lower, int kind) {
  const MatrixParts parts{left, right, upper, lower};
  collective(Request{4, ~0u, 0, 0, kind, &parts, nullptr}, NORMGEN_CALLER);
}

// Recording faults, and telling what everybody waits for when nothing can go on.
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "runtime.h"

namespace normgen_cpu {

namespace {

FaultRecord* append_fault(FaultKind kind, uintptr_t pc, uintptr_t other_pc, const char* format, va_list arguments) {
  Report& report = *machine.report;
  const uint64_t offset = pc - machine.image_begin;
  const uint64_t other_offset = other_pc == 0 ? 0 : other_pc - machine.image_begin;
  for (int i = 0; i < report.fault_count; ++i) {
    FaultRecord& fault = report.faults[i];
    if (fault.kind == kind && fault.pc == offset && fault.other_pc == other_offset) return &fault;
  }
  if (report.fault_count == kMaxFaults) return &report.faults[kMaxFaults - 1];
  FaultRecord& fault = report.faults[report.fault_count++];
  std::memset(&fault, 0, sizeof fault);
  fault.kind = kind;
  fault.pc = offset;
  fault.other_pc = other_offset;
  fault.block = machine.current != nullptr ? machine.current->block->index : -1;
  fault.thread = machine.current != nullptr ? machine.current->thread : -1;
  std::vsnprintf(fault.message, sizeof fault.message, format, arguments);
  return &fault;
}

const Fiber* first_waiting(Wait wait) {
  for (const Block* block : machine.cluster) {
    for (const Fiber* fiber : block->fibers) {
      if (!fiber->exited && fiber->wait == wait) return fiber;
    }
  }
  return nullptr;
}

void add_group(FaultRecord& fault, const Fiber& fiber) {
  const uint64_t pc = fiber.exited ? 0 : fiber.pc - machine.image_begin;
  const int wait = fiber.exited ? -1 : static_cast<int>(fiber.wait);
  for (int i = 0; i < fault.group_count; ++i) {
    if (fault.groups[i].wait == wait && fault.groups[i].pc == pc) {
      ++fault.groups[i].threads;
      return;
    }
  }
  if (fault.group_count < 6) fault.groups[fault.group_count++] = WaitGroup{wait, 1, pc};
}

FaultRecord* record_stall(const Fiber& fiber) {
  switch (fiber.wait) {
    case Wait::kMbarrier:
      return record_fault(kDeadlock, fiber.pc,
                          "waits for ever at an mbarrier: %lld arrivals and %lld bytes are missing in phase %u",
                          static_cast<long long>(fiber.mbarrier->pending),
                          static_cast<long long>(fiber.mbarrier->missing_bytes), fiber.mbarrier->phase);
    case Wait::kWarp:
      return record_fault(kDivergentBarrier, fiber.pc, "lanes %#x take part in a warp collective that not all of them reach",
                          fiber.request.mask);
    case Wait::kBlock:
      return record_fault(kDivergentBarrier, fiber.pc, "__syncthreads is not reached by every thread of the block");
    case Wait::kNamed:
      return record_fault(kDeadlock, fiber.pc, "named barrier %d expects %d threads, and %zu have arrived", fiber.named_id,
                          fiber.named_threads, fiber.block->named[fiber.named_id].size());
    case Wait::kCounter:
      return record_fault(kDeadlock, fiber.pc, "waits for a counter in memory to turn, at which no block arrives any more: its "
                          "top bit is %u, and %#x is counted", *fiber.counter >> 31, *fiber.counter & 0x7fffffffu);
    default:
      return record_fault(kDeadlock, fiber.pc, "the cluster barrier is not reached by every thread of the cluster");
  }
}

}  // namespace

FaultRecord* record_fault(FaultKind kind, uintptr_t pc, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  FaultRecord* fault = append_fault(kind, pc, 0, format, arguments);
  va_end(arguments);
  return fault;
}

void fault_meeting(uintptr_t pc, uintptr_t other_pc, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  append_fault(kDivergentBarrier, pc, other_pc, format, arguments);
  va_end(arguments);
}

void fatal_fault(FaultKind kind, uintptr_t pc, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  append_fault(kind, pc, 0, format, arguments);
  va_end(arguments);
  abandon_run();
}

void fault_timeout(uintptr_t pc) {
  fatal_fault(kTimeout, pc, "the kernel still runs after the time limit of %g s", machine.launch.time_limit_s);
}

void report_stall() {
  const Fiber* culprit = nullptr;
  for (Wait wait : {Wait::kCounter, Wait::kMbarrier, Wait::kWarp, Wait::kBlock, Wait::kNamed, Wait::kCluster}) {
    if (culprit == nullptr) culprit = first_waiting(wait);
  }
  if (culprit == nullptr) return;
  FaultRecord* fault = record_stall(*culprit);
  fault->block = culprit->block->index;
  fault->thread = culprit->thread;
  for (const Fiber* fiber : culprit->block->fibers) add_group(*fault, *fiber);
  machine.aborted = true;
}

}  // namespace normgen_cpu

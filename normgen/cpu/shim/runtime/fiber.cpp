// Fibers: a stack each, and a switch that saves what the calling convention says a callee saves.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime.h"

extern "C" void normgen_cpu_switch(void** save, void* load);
extern "C" void normgen_cpu_fiber_start();

#if defined(__x86_64__)
asm(R"(
.text
.hidden normgen_cpu_switch
.globl normgen_cpu_switch
.type normgen_cpu_switch, @function
normgen_cpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#elif defined(__aarch64__)
asm(R"(
.text
.hidden normgen_cpu_switch
.globl normgen_cpu_switch
.type normgen_cpu_switch, %function
normgen_cpu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#include <ucontext.h>
#define NORMGEN_UCONTEXT 1
#endif

namespace normgen_cpu {

namespace {

constexpr size_t kGuarded = static_cast<size_t>(kMaxThreads) * 16;  // stacks: a process may have 65530 mappings, two for each
std::vector<Fiber*> fibers_by_slot;

unsigned char* stack_of(size_t slot) { return reinterpret_cast<unsigned char*>(machine.stacks_begin) + slot * kStackStride; }

void ensure_slot(size_t slot) {
  if (fibers_by_slot[slot] != nullptr) return;
  const size_t guard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  unsigned char* stack = stack_of(slot);
  const bool is_guarded = fibers_by_slot.size() <= kGuarded;
  if (is_guarded && mprotect(stack + guard, kStackBytes - guard, PROT_READ | PROT_WRITE) != 0) {
    std::perror("normgen cpu executor: cannot map a fiber stack");
    std::abort();
  }
  fibers_by_slot[slot] = new Fiber();
}

void make_current(Fiber* fiber) {
  machine.current = fiber;
  machine.stack_begin = machine.stacks_begin + fiber->slot * kStackStride;
  ++machine.report->switches;
}

#ifdef NORMGEN_UCONTEXT
std::vector<ucontext_t> contexts;
ucontext_t scheduler_context;
#endif

}  // namespace

// Room for the stacks of so many threads; of more than a cluster has without pages between them that nobody may touch.
void reserve_stacks(size_t count) {
  if (count <= fibers_by_slot.size()) return;
  const size_t slots = count < kGuarded ? kGuarded : count;
  if (machine.stacks_begin != 0) {
    munmap(reinterpret_cast<void*>(machine.stacks_begin), machine.stacks_end - machine.stacks_begin);
  }
  const int access = slots <= kGuarded ? PROT_NONE : PROT_READ | PROT_WRITE;
  void* reserved = mmap(nullptr, slots * kStackStride, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    std::perror("normgen cpu executor: cannot reserve fiber stacks");
    std::abort();
  }
  machine.stacks_begin = reinterpret_cast<uintptr_t>(reserved);
  machine.stacks_end = machine.stacks_begin + slots * kStackStride;
  for (Fiber* fiber : fibers_by_slot) delete fiber;
  fibers_by_slot.assign(slots, nullptr);
#ifdef NORMGEN_UCONTEXT
  contexts.resize(slots);
#endif
}

Fiber* make_fiber(size_t slot, Block* block, int thread) {
  ensure_slot(slot);
  // Threads do the same at the same depth of their stacks: each begins at a cache line of its own, modulo a page, or all
  // would share one set of the cache.
  constexpr size_t kLine = 64, kLines = 64;
  unsigned char* top = stack_of(slot) + kStackBytes - slot % kLines * kLine;
  Fiber* fiber = fibers_by_slot[slot];
  fiber->~Fiber();  // in place: assigning a fresh one took twice as long
  new (fiber) Fiber();
  fiber->block = block;
  fiber->thread = thread;
  fiber->slot = slot;
  fiber->stamp_thread = static_cast<uint64_t>(block->rank) * kMaxThreads + thread;
  fiber->event = -1;
  fiber->dependency_met = machine.launch.dependent == 0;
  fiber->warp_clock = block->start_clock;
#if defined(__x86_64__)
  void** words = reinterpret_cast<void**>(top) - 10;  // six registers, the entry, then a return address it never uses
  std::memset(words, 0, 10 * sizeof(void*));
  words[6] = reinterpret_cast<void*>(&normgen_cpu_fiber_start);  // leaves the stack pointer at 8 modulo 16, as a call does
  fiber->stack_pointer = words;
#elif defined(__aarch64__)
  void** words = reinterpret_cast<void**>(top) - 20;
  std::memset(words, 0, 20 * sizeof(void*));
  words[11] = reinterpret_cast<void*>(&normgen_cpu_fiber_start);
  fiber->stack_pointer = words;
#else
  ucontext_t& context = contexts[slot];
  getcontext(&context);
  unsigned char* bottom = stack_of(slot) + sysconf(_SC_PAGESIZE);
  context.uc_stack.ss_sp = bottom;
  context.uc_stack.ss_size = top - bottom;
  context.uc_link = nullptr;
  makecontext(&context, &normgen_cpu_fiber_start, 0);
#endif
  return fiber;
}

void resume(Fiber* fiber) {
  make_current(fiber);
#ifdef NORMGEN_UCONTEXT
  swapcontext(&scheduler_context, &contexts[fiber->slot]);
#else
  normgen_cpu_switch(&machine.scheduler_stack, fiber->stack_pointer);
#endif
  machine.current = nullptr;
}

void leave_fiber() {
  Fiber* fiber = machine.current;
  std::deque<Fiber*>& ready = fiber->block->ready;
  if (machine.aborted || ready.empty()) {
#ifdef NORMGEN_UCONTEXT
    swapcontext(&contexts[fiber->slot], &scheduler_context);
#else
    normgen_cpu_switch(&fiber->stack_pointer, machine.scheduler_stack);
#endif
    return;
  }
  Fiber* next = ready.front();
  ready.pop_front();
  make_current(next);
  if (next == fiber) return;
#ifdef NORMGEN_UCONTEXT
  swapcontext(&contexts[fiber->slot], &contexts[next->slot]);
#else
  normgen_cpu_switch(&fiber->stack_pointer, next->stack_pointer);
#endif
}

void abandon_run() {
  machine.aborted = true;
  leave_fiber();
  std::abort();  // nobody resumes a fiber of an abandoned run
}

}  // namespace normgen_cpu

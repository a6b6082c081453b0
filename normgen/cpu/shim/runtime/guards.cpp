// A time limit that also ends a loop without any memory access, and a last resort for wild pointers.
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdlib>

#include "runtime.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace normgen_cpu {

volatile bool time_is_up = false;

namespace {

constexpr size_t kAlternateBytes = 128 * 1024;
// The limit is on what the thread computes: on a busy machine a kernel that is right takes any number of seconds.
constexpr clockid_t kClock = CLOCK_THREAD_CPUTIME_ID;
timer_t timer;
timespec deadline;
struct sigaction old_timer_action, old_segv_action, old_bus_action;
stack_t old_stack;
int timer_signal() { return SIGRTMIN + 7; }

uintptr_t interrupted_pc(void* context) {
  const ucontext_t* user = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
  return static_cast<uintptr_t>(user->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return static_cast<uintptr_t>(user->uc_mcontext.pc);
#else
  (void)user;
  return 0;
#endif
}

bool in_kernel(uintptr_t pc) { return machine.current != nullptr && pc >= machine.code_begin && pc < machine.code_end; }

// Leaves the handler for good when the kernel's own code was interrupted: nothing of the runtime is half done then.
void on_timer(int, siginfo_t*, void* context) {
  timespec now;
  clock_gettime(kClock, &now);
  if (now.tv_sec < deadline.tv_sec || (now.tv_sec == deadline.tv_sec && now.tv_nsec < deadline.tv_nsec)) return;
  time_is_up = true;
  const uintptr_t pc = interrupted_pc(context);
  if (in_kernel(pc)) fault_timeout(pc + 1);
}

void on_bad_access(int number, siginfo_t* info, void* context) {
  const uintptr_t pc = interrupted_pc(context);
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (in_kernel(pc)) {
    const bool overflow = address >= machine.stacks_begin && address < machine.stacks_end;
    fatal_fault(kOutOfBounds, pc + 1, "%s %#llx", overflow ? "local memory is exhausted at" : "touches unmapped address",
                static_cast<unsigned long long>(address));
  }
  sigaction(number, number == SIGSEGV ? &old_segv_action : &old_bus_action, nullptr);  // not ours: happens again on return
}

}  // namespace

void start_guards() {
  static void* alternate = std::malloc(kAlternateBytes);
  time_is_up = false;
  const double limit = machine.launch.time_limit_s;
  clock_gettime(kClock, &deadline);
  const long long nanoseconds = deadline.tv_nsec + static_cast<long long>((limit - static_cast<long long>(limit)) * 1e9);
  deadline.tv_sec += static_cast<long long>(limit) + nanoseconds / 1000000000;
  deadline.tv_nsec = nanoseconds % 1000000000;

  stack_t stack = {};
  stack.ss_sp = alternate;
  stack.ss_size = kAlternateBytes;
  sigaltstack(&stack, &old_stack);
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
  action.sa_sigaction = on_timer;
  sigaction(timer_signal(), &action, &old_timer_action);
  action.sa_sigaction = on_bad_access;
  sigaction(SIGSEGV, &action, &old_segv_action);
  sigaction(SIGBUS, &action, &old_bus_action);

  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = timer_signal();
  event.sigev_notify_thread_id = static_cast<pid_t>(syscall(SYS_gettid));
  timer_create(kClock, &event, &timer);
  const itimerspec every{{0, 20000000}, {0, 20000000}};
  timer_settime(timer, 0, &every, nullptr);
}

void stop_guards() {
  timer_delete(timer);
  sigaction(SIGSEGV, &old_segv_action, nullptr);
  sigaction(SIGBUS, &old_bus_action, nullptr);
  sigaction(timer_signal(), &old_timer_action, nullptr);
  sigaltstack(&old_stack, nullptr);
}

}  // namespace normgen_cpu

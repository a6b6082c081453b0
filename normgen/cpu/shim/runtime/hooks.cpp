// What the compiler's instrumentation calls: before each load and store (thread sanitizer's interface), when a pointer
// is not aligned for its type and when an array index is too large (undefined behaviour sanitizer's interface).
#include <cstring>
#include <type_traits>

#include "runtime.h"

namespace normgen_cpu {

namespace {

inline void hook(void* pointer, size_t bytes, int access, bool aligned, uintptr_t pc) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  if (address - machine.stack_begin < kStackBytes || machine.current == nullptr) return;
  trace_step(address, bytes, access);
  check_access(address, bytes, access, aligned, pc);
}

struct SourceLocation {
  const char* file;
  uint32_t line, column;
};

struct TypeDescriptor {
  uint16_t kind, info;
  char name[1];
};

struct OutOfBoundsData {
  SourceLocation location;
  TypeDescriptor* array;
  TypeDescriptor* index;
};

struct TypeMismatchData {
  SourceLocation location;
  TypeDescriptor* type;
  unsigned char log_alignment, kind;
};

template <typename T>
T atomic_add(T* target, T value, uintptr_t pc) {
  if (time_is_up) fault_timeout(pc);
  const uintptr_t address = reinterpret_cast<uintptr_t>(target);
  trace_step(address, sizeof(T), kAtomic);
  check_access(address, sizeof(T), kAtomic, true, pc);
  // Blocks count each other with integers; a sum of floats tells nobody that it is complete.
  const T old = *target;
  if (std::is_integral<T>::value && !in_shared(address)) {
    meet_at_counter(address, static_cast<uint32_t>(static_cast<int64_t>(old) + static_cast<int64_t>(value)) >> 31 != 0);
  }
  *target = old + value;
  return old;
}

}  // namespace

}  // namespace normgen_cpu

using namespace normgen_cpu;

#define NORMGEN_HOOK(name, bytes, access, aligned) \
  NORMGEN_API void name(void* pointer) { hook(pointer, bytes, access, aligned, NORMGEN_CALLER); }

NORMGEN_HOOK(__tsan_read1, 1, kRead, true)
NORMGEN_HOOK(__tsan_read2, 2, kRead, true)
NORMGEN_HOOK(__tsan_read4, 4, kRead, true)
NORMGEN_HOOK(__tsan_read8, 8, kRead, true)
NORMGEN_HOOK(__tsan_read16, 16, kRead, true)
NORMGEN_HOOK(__tsan_write1, 1, kWrite, true)
NORMGEN_HOOK(__tsan_write2, 2, kWrite, true)
NORMGEN_HOOK(__tsan_write4, 4, kWrite, true)
NORMGEN_HOOK(__tsan_write8, 8, kWrite, true)
NORMGEN_HOOK(__tsan_write16, 16, kWrite, true)
NORMGEN_HOOK(__tsan_unaligned_read2, 2, kRead, false)
NORMGEN_HOOK(__tsan_unaligned_read4, 4, kRead, false)
NORMGEN_HOOK(__tsan_unaligned_read8, 8, kRead, false)
NORMGEN_HOOK(__tsan_unaligned_read16, 16, kRead, false)
NORMGEN_HOOK(__tsan_unaligned_write2, 2, kWrite, false)
NORMGEN_HOOK(__tsan_unaligned_write4, 4, kWrite, false)
NORMGEN_HOOK(__tsan_unaligned_write8, 8, kWrite, false)
NORMGEN_HOOK(__tsan_unaligned_write16, 16, kWrite, false)

NORMGEN_API void __tsan_init() {}
NORMGEN_API void __tsan_func_entry(void*) {}
NORMGEN_API void __tsan_func_exit() {}
NORMGEN_API void __tsan_vptr_update(void**, void*) {}
NORMGEN_API void __tsan_vptr_read(void**) {}
NORMGEN_API void __tsan_read_range(void* pointer, size_t bytes) { hook(pointer, bytes, kRead, false, NORMGEN_CALLER); }
NORMGEN_API void __tsan_write_range(void* pointer, size_t bytes) { hook(pointer, bytes, kWrite, false, NORMGEN_CALLER); }

NORMGEN_API void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  hook(const_cast<void*>(from), bytes, kRead, false, NORMGEN_CALLER);
  hook(to, bytes, kWrite, false, NORMGEN_CALLER);
  return std::memcpy(to, from, bytes);
}
NORMGEN_API void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  hook(const_cast<void*>(from), bytes, kRead, false, NORMGEN_CALLER);
  hook(to, bytes, kWrite, false, NORMGEN_CALLER);
  return std::memmove(to, from, bytes);
}
NORMGEN_API void* __tsan_memset(void* to, int value, size_t bytes) {
  hook(to, bytes, kWrite, false, NORMGEN_CALLER);
  return std::memset(to, value, bytes);
}

NORMGEN_API void __ubsan_handle_type_mismatch_v1(TypeMismatchData* data, void* pointer) {
  if (machine.current == nullptr) return;
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  fatal_fault(kMisaligned, NORMGEN_CALLER, "%s needs an address that is a multiple of %d; this one is a multiple of %zu only",
              data->type->name, 1 << data->log_alignment, static_cast<size_t>(address & -address));
}

NORMGEN_API void __ubsan_handle_out_of_bounds(OutOfBoundsData* data, uintptr_t index) {
  if (machine.current == nullptr) return;
  fatal_fault(kIndexOutOfArray, NORMGEN_CALLER, "index %lld is outside the array %s", static_cast<long long>(index),
              data->array->name);
}

NORMGEN_API float normgen_cpu_atomic_add_float(float* target, float value) {
  return atomic_add(target, value, NORMGEN_CALLER);
}
NORMGEN_API int normgen_cpu_atomic_add_int(int* target, int value) { return atomic_add(target, value, NORMGEN_CALLER); }
NORMGEN_API unsigned normgen_cpu_atomic_add_unsigned(unsigned* target, unsigned value) {
  return atomic_add(target, value, NORMGEN_CALLER);
}
NORMGEN_API void normgen_cpu_griddepcontrol_wait() {
  trace_step(0, 0, kTracedWait);
  machine.current->dependency_met = true;
}
NORMGEN_API void normgen_cpu_griddepcontrol_launch_dependents() { trace_step(0, 0, kTracedTrigger); }
NORMGEN_API unsigned normgen_cpu_thread_index() { return static_cast<unsigned>(machine.current->thread); }
NORMGEN_API unsigned normgen_cpu_block_index() { return static_cast<unsigned>(machine.current->block->index); }
NORMGEN_API unsigned normgen_cpu_block_dim() { return static_cast<unsigned>(machine.launch.threads); }
NORMGEN_API unsigned normgen_cpu_grid_dim() { return static_cast<unsigned>(machine.launch.grid); }
NORMGEN_API unsigned char* normgen_cpu_dynamic_shared() { return machine.dynamic; }

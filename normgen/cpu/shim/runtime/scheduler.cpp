// One launch: clusters one after the other, the blocks of a cluster alive together, fibers in turn. A cooperative launch
// is one cluster in this, whose blocks meet in memory alone.
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace normgen_cpu {

Machine machine;

void wake(Fiber* fiber) {
  fiber->wait = Wait::kNone;
  fiber->block->ready.push_back(fiber);
}

void park(Wait wait, uintptr_t pc) {
  machine.current->wait = wait;
  machine.current->pc = pc;
  leave_fiber();
}

namespace {

struct Random {  // xorshift: the order of blocks and threads only has to vary with the seed
  uint32_t state;
  uint32_t operator()(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state % below;
  }
};

template <typename T>
void shuffle(std::vector<T>& items, uint32_t seed) {
  if (seed == 0) return;  // seed 0 keeps the natural order
  Random random{seed * 2654435761u | 1u};
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random(static_cast<uint32_t>(i))]);
}

void activate(Block& block) {
  if (machine.launch.cluster == 1 || machine.live == &block) {
    machine.live = &block;
    return;
  }
  const size_t dynamic = static_cast<size_t>(machine.launch.dynamic_bytes);
  if (machine.live != nullptr) {
    std::memcpy(machine.live->saved_static.data(), machine.launch.shared_begin, machine.static_bytes);
    std::memcpy(machine.live->saved_dynamic.data(), machine.dynamic, dynamic);
  }
  std::memcpy(machine.launch.shared_begin, block.saved_static.data(), machine.static_bytes);
  std::memcpy(machine.dynamic, block.saved_dynamic.data(), dynamic);
  machine.live = &block;
}

Block* block_at(int rank) {
  static Block* blocks[kMaxTogether] = {};
  if (blocks[rank] == nullptr) blocks[rank] = new Block();
  return blocks[rank];
}

void start_block(int index, int rank) {
  Block* block = block_at(rank);
  const Shadow shadow = block->shadow;
  *block = Block();
  block->shadow = shadow;
  block->index = index;
  block->rank = rank;
  block->start_clock = block->barrier_clock = tick();
  for (int thread = 0; thread < machine.launch.threads; ++thread) {
    const size_t slot = static_cast<size_t>(rank) * machine.launch.threads + thread;
    block->fibers.push_back(make_fiber(slot, block, thread));
    block->live[thread / kWarp] |= 1u << thread % kWarp;
  }
  std::vector<Fiber*> order = block->fibers;
  shuffle(order, machine.launch.seed == 0 ? 0 : machine.launch.seed + 7919u * static_cast<uint32_t>(index));
  block->ready.assign(order.begin(), order.end());
  poison_shared(*block);
  machine.cluster.push_back(block);
}

bool run_ready_fibers() {
  bool progress = false;
  for (Block* block : machine.cluster) {
    if (block->ready.empty()) continue;
    activate(*block);
    progress = true;
    while (!block->ready.empty() && !machine.aborted) {  // fibers pass the turn on until none is ready
      Fiber* fiber = block->ready.front();
      block->ready.pop_front();
      resume(fiber);
    }
  }
  return progress;
}

bool all_exited() {
  return std::all_of(machine.cluster.begin(), machine.cluster.end(), [](const Block* block) {
    return block->exited == static_cast<int>(block->fibers.size());
  });
}

void run_cluster(int index) {
  machine.cluster.clear();
  machine.live = nullptr;
  machine.cluster_phase = 0;
  machine.cluster_arrived = 0;
  const int size = machine.launch.cluster;
  start_global_cluster(index * size);
  for (auto& arrivals : machine.arrivals) arrivals.assign(static_cast<size_t>(size) * kMaxThreads, 0);
  for (int rank = 0; rank < size; ++rank) start_block(index * size + rank, rank);
  while (!machine.aborted && (run_ready_fibers() || recheck_counters())) {
  }
  if (!machine.aborted && !all_exited()) report_stall();
  if (!machine.aborted) machine.report->blocks_run += size;
}

int find_image(dl_phdr_info* info, size_t, void*) {
  const uintptr_t entry = reinterpret_cast<uintptr_t>(machine.launch.entry);
  uintptr_t end = 0, code_begin = 0, code_end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    end = std::max<uintptr_t>(end, begin + header.p_memsz);
    if (entry < begin || entry >= begin + header.p_memsz) continue;
    code_begin = begin;
    code_end = begin + header.p_memsz;
  }
  if (code_end == 0) return 0;
  machine.image_begin = info->dlpi_addr;
  machine.image_end = end;
  machine.code_begin = code_begin;
  machine.code_end = code_end;
  return 1;
}

// The shim puts a red zone that starts with this pattern beside every static shared variable.
constexpr char kRedzoneMark[17] = "normgen.red.zone";
constexpr size_t kRedzoneBytes = 128;

void find_redzones() {
  static std::vector<unsigned char> pattern(kRedzoneMark, kRedzoneMark + 16);
  machine.redzone.assign(machine.static_bytes, 0);
  for (size_t i = 0; i + kRedzoneBytes <= machine.static_bytes; i += 16) {
    if (std::memcmp(machine.launch.shared_begin + i, pattern.data(), 16) != 0) continue;
    std::memset(machine.redzone.data() + i, 1, kRedzoneBytes);
  }
}

void prepare(const Launch& launch, Report* report) {
  machine.launch = launch;
  machine.report = report;
  machine.aborted = false;
  machine.static_bytes = static_cast<size_t>(launch.shared_end - launch.shared_begin);
  if (machine.dynamic == nullptr) {
    void* memory = mmap(nullptr, 2 * kMaxShared, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    machine.dynamic = static_cast<unsigned char*>(memory);
  }
  reserve_stacks(static_cast<size_t>(launch.cluster) * launch.threads);
  dl_iterate_phdr(find_image, nullptr);
  std::memset(report, 0, offsetof(Report, faults));
  find_redzones();
  start_global_launch();
}

}  // namespace

void start_guards();
void stop_guards();

}  // namespace normgen_cpu

using namespace normgen_cpu;

extern "C" __attribute__((visibility("hidden"))) void normgen_cpu_fiber_start() {
  machine.launch.entry(machine.launch.arguments);
  Fiber& fiber = *machine.current;
  Block& block = *fiber.block;
  if (!fiber.dependency_met) {
    record_fault(kTooEarly, machine.image_begin, "thread %d ends without having waited for the kernels in front",
                 fiber.thread);
  }
  check_awaited(fiber);
  fiber.exited = true;
  ++block.exited;
  block.live[fiber.warp()] &= ~(1u << fiber.lane());
  recheck_warp(block, fiber.warp());
  recheck_block_barrier(block);
  recheck_cluster_barrier();
  leave_fiber();
  std::abort();  // nobody resumes an exited thread
}

NORMGEN_API int normgen_cpu_launch(const Launch* launch, Report* report) {
  prepare(*launch, report);
  const std::vector<unsigned char> image(launch->shared_begin, launch->shared_end);
  const int clusters = launch->grid / launch->cluster;
  std::vector<int> order;
  for (int i = 0; i < clusters; ++i) {
    if (launch->ends == 0 || i < launch->ends || i >= clusters - launch->ends) order.push_back(i);
  }
  shuffle(order, launch->seed);
  start_guards();
  for (int cluster : order) {
    if (machine.aborted) break;
    run_cluster(cluster);
  }
  stop_guards();
  if (!image.empty()) std::memcpy(launch->shared_begin, image.data(), image.size());
  return report->fault_count;
}

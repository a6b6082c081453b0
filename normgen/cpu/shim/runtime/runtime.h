// The CPU executor's runtime: state of one launch, and the functions its parts offer each other.
// One operating-system thread runs everything; every CUDA thread is a fiber.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#define NORMGEN_API extern "C" __attribute__((visibility("default")))
#define NORMGEN_CALLER reinterpret_cast<std::uintptr_t>(__builtin_return_address(0))

namespace normgen_cpu {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;
using std::uintptr_t;

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;  // a block
constexpr int kMaxTogether = 255;  // blocks that are alive at a time: of a cluster, or of a cooperative launch
constexpr int kMaxWarps = kMaxThreads / kWarp;
constexpr size_t kMaxShared = 256 * 1024;  // bytes of static, and of dynamic, shared memory of a block
constexpr size_t kStackBytes = 256 * 1024;
#if defined(__x86_64__)
constexpr size_t kPageBytes = 4096;
#else
constexpr size_t kPageBytes = 64 * 1024;  // the largest of any machine
#endif
// Stacks do not start at multiples of a power of two: their first pages would share one set of the TLB.
constexpr size_t kStackStride = kStackBytes + kPageBytes;
constexpr int kNamedBarriers = 16;
constexpr unsigned char kPoison = 0xFF;  // a NaN as float, half and bfloat16

enum FaultKind : int {
  kOutOfBounds,
  kMisaligned,
  kUninitialisedShared,
  kSharedRace,
  kDivergentBarrier,
  kDeadlock,
  kTimeout,
  kOutOfBoundsShared,
  kTooEarly,  // a dependent launch touched memory, or ended, before it waited for the kernels in front of it
  kMbarrier,  // used with no barrier since its initialisation, or initialised while in use
  kMissingFence,
  kGlobalRace,
  kUnawaited,  // a thread or a block ends while its copy to shared memory is on its way
  kIndexOutOfArray,  // of a local or a shared array: Python tells which from the line
};

enum class Wait : int { kNone, kBlock, kWarp, kNamed, kCluster, kMbarrier, kCounter };

// ---- the ABI shared with Python (normgen/cpu/library.py mirrors it) ----

struct Region {  // one tensor: `rows` rows of `row_bytes` legal bytes, `pitch_bytes` apart
  uint64_t base;
  int64_t rows, row_bytes, pitch_bytes;
  int64_t writable;
  int64_t stable;  // no kernel in front writes it: it may be read before the wait
  int64_t cell_bytes;  // of an element: no thread writes half of one
  const char* name;
};

struct WaitGroup {
  int wait, threads;
  uint64_t pc;
};

struct FaultRecord {
  int kind, block, thread, group_count;
  uint64_t pc;        // offset into the kernel's image
  uint64_t other_pc;  // a second call site that must be the same one, or 0
  uint64_t earlier_pc;  // of the access that this one conflicts with, or 0
  WaitGroup groups[6];
  char message[256];
};

enum TraceKind : int { kTracedCopy = 8, kTracedPrefetch, kTracedShuffle, kTracedWait, kTracedTrigger };  // beside Access

struct Traced {  // one step of one thread, in the order in which steps happened
  uint64_t address;
  int bytes, kind, block, thread;
  int other;  // of a shuffle: the thread whose value it takes; of an access: whether it is of shared memory
};

struct Launch {
  void (*entry)(void**);
  unsigned char* shared_begin;
  unsigned char* shared_end;
  void** arguments;
  const Region* regions;
  int region_count, grid, threads;
  int cluster;  // blocks that are alive at a time: of a cooperative launch all of the grid
  int dynamic_bytes, dependent;
  int ends;  // clusters at each end of the grid that run; 0: all
  uint32_t seed;
  double time_limit_s;
  Traced* trace;  // null where nobody asks for the steps
  int64_t trace_capacity;
};

constexpr int kMaxFaults = 64;
struct Report {
  int fault_count, blocks_run;
  uint64_t switches, accesses, traced;  // traced: steps, also those beyond the capacity
  FaultRecord faults[kMaxFaults];
};

// ---- happens-before between barriers of a part of a block ----

struct Lanes {
  int warp;
  uint32_t mask;
};

struct Event {  // everything `lanes` did before `time` is known to whoever knows the event
  uint64_t time;
  std::vector<Lanes> lanes;
  std::vector<int> before;
  bool asynchronous;  // covers what asynchronous copies wrote
};

// ---- fences ----

struct Fence {  // a thread's last one, and what stood before it: clocks up to which accesses are fenced
  uint64_t clock = 0;    // of the thread itself
  uint64_t barrier = 0;  // of its block, by the last block barrier in front of the fence
  uint64_t warp = 0;     // of its warp, by the last __syncwarp in front of the fence
  int event = -1;        // the last event in front of the fence since its block's last barrier: fences cover what it tells
};

// ---- shared memory shadow: one cell per byte ----
// A stamp is clock << 20 | flags << 18 | thread; thread is rank in the cluster * 1024 + threadIdx.x.

constexpr int kStampShift = 20;
constexpr uint64_t kAtomicFlag = 1u << 18;
constexpr uint64_t kInFlightFlag = 2u << 18;
constexpr uint64_t kThreadBits = 0x3FFFF;
constexpr uint64_t kManyReaders = 0x3FFFE;  // no thread has this number, nor the next: there are 255 blocks at most
constexpr uint64_t kAsyncThread = 0x3FFFF;

struct Readers {  // of bytes that several threads of the block have read since the last block barrier
  uint32_t mask[kMaxWarps];
  uint64_t clock[kMaxWarps];
  size_t first, end;  // these bytes, less those that were read or written apart since
};

struct Shadow {
  uint64_t* write = nullptr;
  uint64_t* read = nullptr;
  uint32_t* readers = nullptr;  // index into Block::readers where read says kManyReaders
};

// ---- blocks and fibers ----

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  uint32_t bytes;
  uintptr_t pc;
  bool rounds = false;  // floats become TF32 on their way
};

constexpr unsigned kMaxSent = 128;  // bytes of one value

struct Sent {  // a value on its way into a block's shared memory
  uintptr_t to;
  uint32_t bytes;
  unsigned char value[kMaxSent];
};

struct Knowledge {  // all that the threads of a warp did before `clock` has happened; warp counts over the cluster
  int warp;
  uint64_t clock;
};

struct Mbarrier {
  uint64_t initialised = 0;            // stamp
  uint64_t cluster_fence = 0;          // stamp of the initialising thread's mbarrier_cluster_fence, or 0
  std::vector<uint64_t> proxy_fences;  // stamps of mbarrier_fences behind the initialisation
  uint32_t count = 0;
  int64_t pending = 0, missing_bytes = 0;
  uint32_t phase = 0;
  std::vector<int> arrivals;  // events of the phase under way
  int completed = -1;         // event of the last completed phase
  std::vector<Copy> copies;
  std::vector<Sent> sent;
  std::vector<Knowledge> told;   // by those who sent in the phase under way
  std::vector<uint64_t> known;   // what completed phases tell: a clock for each warp of the cluster
};

struct Block;

struct Request {  // what a lane waits for in a warp collective
  int kind;       // 0 __syncwarp, 1 shuffle, 2 ballot, 3 ldmatrix, 4 mma, 5 wgmma, 6 its wait, 7 its commit
  uint32_t mask;
  int source, bytes, predicate;
  const void* in;
  void* out;
};

struct MatrixParts {  // what a lane has of the matrices of an mma
  const unsigned* left;
  const unsigned* right;
  float* upper;
  float* lower;
};

enum class Factors { kF16, kBf16, kTf32 };

struct Product {  // of a warp's 16 lines, which an instruction of four warps multiplies
  uintptr_t left, right;
  bool adds;
  Factors kind;
  int columns;
  float* sums[kWarp];
  uintptr_t pc;
};

struct Products {  // of a warp, which read shared memory and write sums when they are waited for
  std::vector<Product> open;
  std::vector<std::vector<Product>> groups;
  std::unordered_map<float*, std::vector<float>> sums;  // of a lane, by where they are: those on their way
};

struct Fiber {
  void* stack_pointer;
  Block* block;
  int thread;       // threadIdx.x
  uint64_t stamp_thread;
  bool exited;
  bool dependency_met;  // has waited for the kernels in front, or need not
  Wait wait;
  uintptr_t pc;
  Request request;
  int named_id, named_threads;
  Mbarrier* mbarrier;
  uint32_t parity;
  const unsigned* counter;  // in memory, whose top bit this thread waits for: as long as it is `before`
  unsigned before;
  size_t slot;  // of its stack
  int event;            // the last event this thread took part in since the last block barrier, or -1
  uint64_t warp_clock;  // of the last __syncwarp of the whole warp
  Fence fence;          // __threadfence
  bool sums_fenced;     // wgmma_fence, since it has had its sums
  std::vector<Fence> proxy_fences;  // mbarrier_fence, shared_fence: make generic writes visible to the copy engine
  std::vector<int> acquired;  // updates of counters that this thread may rely on: indices into global.cpp's list
  uint64_t cluster_phase;
  bool cluster_arrived;
  std::vector<uint64_t> known;  // by warp of the cluster: the clock up to which values received tell of its accesses
  std::vector<Copy> uncommitted;
  std::vector<Copy> stores;  // by the copy engine, which reads shared memory when they are waited for
  std::vector<std::vector<Copy>> groups;  // not a deque, whose constructor allocates: most threads copy nothing
  int lane() const { return thread % kWarp; }
  int warp() const { return thread / kWarp; }
};

struct Block {
  int index, rank;
  std::vector<Fiber*> fibers;
  std::deque<Fiber*> ready;
  int exited, at_barrier;
  uint32_t live[kMaxWarps];     // by warp: lanes that have not exited
  uint32_t waiting[kMaxWarps];  // by warp: lanes in a warp collective
  std::vector<Fiber*> named[kNamedBarriers];
  uint64_t start_clock, barrier_clock;
  std::vector<Event> events;
  std::vector<Readers> readers;
  std::unordered_map<uintptr_t, Mbarrier> mbarriers;  // by address while the block is the live one
  Products products[kMaxWarps];
  std::vector<std::pair<unsigned char*, std::vector<unsigned char>>> stored;  // what reaches memory at the block's end
  std::vector<unsigned char> saved_static, saved_dynamic;
  Shadow shadow;
};

struct Machine {
  Launch launch;
  Report* report;
  Block* live = nullptr;  // the block whose shared memory is in place
  Fiber* current = nullptr;
  void* scheduler_stack = nullptr;
  std::vector<Block*> cluster;
  uint64_t clock = 1;
  uint64_t launch_clock = 0, cluster_clock = 0;  // at their starts
  uint64_t cluster_phase = 0;
  int cluster_waiting = 0;
  int cluster_arrived = 0;
  std::vector<uint64_t> arrivals[2];  // clock at which a thread arrived at the even / odd cluster barrier
  bool aborted = false;
  uintptr_t image_begin = 0, image_end = 0, code_begin = 0, code_end = 0;
  size_t static_bytes = 0;
  std::vector<unsigned char> redzone;  // per static byte: 1 where no variable lies
  unsigned char* dynamic = nullptr;
  uintptr_t stack_begin = 0;  // of the running fiber
  uintptr_t stacks_begin = 0, stacks_end = 0;
  uint64_t accesses_until_yield = 0;
};

extern Machine machine;
extern volatile bool time_is_up;

// fiber.cpp
void reserve_stacks(size_t count);
Fiber* make_fiber(size_t slot, Block* block, int thread);
void resume(Fiber* fiber);
void leave_fiber();               // to the block's next ready fiber, else to the scheduler; comes back when resumed
[[noreturn]] void abandon_run();  // to the scheduler for good

// scheduler.cpp
void park(Wait wait, uintptr_t pc);
void wake(Fiber* fiber);

// faults.cpp
FaultRecord* record_fault(FaultKind kind, uintptr_t pc, const char* format, ...) __attribute__((format(printf, 3, 4)));
// Threads that need the same call meet at two. Python drops it where the compiler copied one call to two places.
void fault_meeting(uintptr_t pc, uintptr_t other_pc, const char* format, ...) __attribute__((format(printf, 3, 4)));
[[noreturn]] void fatal_fault(FaultKind kind, uintptr_t pc, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
void report_stall();
[[noreturn]] void fault_timeout(uintptr_t pc);

// memory.cpp
enum Access { kRead = 1, kWrite = 2, kAtomic = 4 };
void check_access(uintptr_t address, size_t bytes, int access, bool aligned, uintptr_t pc);
void check_read_for(const char* reader, uintptr_t address, size_t bytes, uintptr_t pc);
void trace_step(uintptr_t address, size_t bytes, int kind, int other = 0);
bool in_shared(uintptr_t address);
void check_shared_extent(uintptr_t address, size_t bytes, int access, uintptr_t pc);
size_t shadow_index(uintptr_t address);
void mark_in_flight(const Copy& copy, bool reads, uintptr_t pc);
void land(const Copy& copy, uint64_t thread);
void check_remote_write(Block& target, size_t index, size_t bytes, uintptr_t pc);
void mark_sent(Block& target, size_t index, size_t bytes, uintptr_t pc);
void land_bytes(Block& block, size_t index, size_t bytes, uint64_t thread);
void poison_shared(Block& block);

// global.cpp
void start_global_launch();
void start_global_cluster(int first_block);
void check_cells(int region, uintptr_t address, size_t bytes, int access, uintptr_t pc);
void meet_at_counter(uintptr_t address, bool turn);
void rely_on_counter(uintptr_t address, bool before);
void acquire_counters(Fiber& fiber);

// fences.cpp
Fence fence_now(const Fiber& fiber);
bool is_within(uint64_t stamp, const Fence& fence, uint64_t owner);
bool check_mbarrier_order(const Mbarrier& mbarrier, uintptr_t pc);
void check_proxy(const Mbarrier& mbarrier, uintptr_t pc);
void check_cluster_fence(const Mbarrier& mbarrier, uintptr_t pc);
void check_overwritten(const Copy& copy, uintptr_t pc);
void check_stored(const Copy& copy, uintptr_t pc);

// async.cpp
void check_awaited(Fiber& fiber);

// order.cpp
bool is_ordered(uint64_t stamp, const Fiber& reader);
int add_event(Block& block, std::vector<Lanes> lanes, std::vector<int> before, bool asynchronous);
uint64_t tick();
uint64_t my_stamp();
uint64_t stamp_of(const Fiber& fiber, uint64_t clock);

// barriers.cpp
Block& block_of_cluster(uintptr_t address, unsigned rank, uintptr_t pc);
unsigned char* shared_of(Block& target, uintptr_t own);

// matrix.cpp: of all lanes of a warp
void read_matrices(const Request* const* lanes);
void multiply_matrices(const Request* const* lanes);
void start_products(Block& block, int warp, const Request* const* lanes);
void finish_products(Block& block, int warp, size_t groups_left);

// warp.cpp, async.cpp
void recheck_warp(Block& block, int warp);
void recheck_block_barrier(Block& block);
void recheck_cluster_barrier();
bool recheck_counters();

}  // namespace normgen_cpu

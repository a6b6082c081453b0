"""Hand-written modules in the conventions of emitted text, and how to run them."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.module import KernelEntry, Launch, Module, Param, Source, Workspace

_INSTRUCTIONS = "#error the CPU executor must not compile the instructions\n"


def pointer(name: str, ctype: str) -> Param:
    return Param(name=name, ctype=ctype, source=Source.TENSOR, key=name)


def pitch(name: str) -> Param:
    return Param(name=f"{name}_pitch", ctype="long long", source=Source.PITCH, key=name)


ROWS = Param(name="rows", ctype="int", source=Source.ROWS)
COLS = Param(name="cols", ctype="int", source=Source.COLS)
EPS = Param(name="eps", ctype="float", source=Source.SCALAR, key="eps")


def workspace(name: str, ctype: str, offset: int = 0) -> Param:
    return Param(name=name, ctype=ctype, source=Source.WORKSPACE, offset=offset)


NO_WORKSPACE = Workspace()


def module(text: str, *kernels: KernelEntry, workspace: Workspace = NO_WORKSPACE) -> Module:
    return Module(instructions=_INSTRUCTIONS, text=text, kernels=kernels, workspace=workspace)


def kernel(name: str, params: Sequence[Param], **launch: int) -> KernelEntry:
    return KernelEntry(name=name, params=tuple(params), launch=Launch(**launch))


def lines_of(text: str, mark: str) -> list[int]:
    """The numbers, from 1, of the lines with that mark."""
    return [number for number, line in enumerate(text.split("\n"), 1) if mark in line]


ROW_SUM = module(
    """
__device__ inline float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// One warp owns one row.
extern "C" __global__ void __launch_bounds__(64) row_sum(
    float* __restrict__ total, const float* __restrict__ x, long long x_pitch, int rows, int cols) {
  const int row = blockIdx.x * 2 + threadIdx.x / 32;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int c = threadIdx.x % 32; c < cols; c += 32) sum += x[row * x_pitch + c];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0 && total != nullptr) total[row] = sum;
}
""",
    kernel(
        "row_sum",
        [pointer("total", "float*"), pointer("x", "const float*"), pitch("x"), ROWS, COLS],
        threads=64,
        rows_per_block=2,
    ),
)


def layernorm(*, dynamic: bool) -> Module:
    """A block of 256 threads per row; the row waits in dynamic shared memory or is loaded again."""
    name = "layernorm_dynamic" if dynamic else "layernorm_static"
    hold = "float* held = reinterpret_cast<float*>(dynamic_shared());" if dynamic else ""
    keep = "held[c] = value;" if dynamic else ""
    value = "held[c]" if dynamic else "x[row * x_pitch + c]"
    text = f"""
struct State {{ float n, mean, m2; }};

__device__ inline State merge(const State& a, const State& b) {{
  const float n = a.n + b.n;
  if (n == 0.0f) return a;
  const float delta = b.mean - a.mean;
  return State{{n, a.mean + delta * (b.n / n), a.m2 + b.m2 + delta * delta * (a.n * b.n / n)}};
}}

__device__ inline State shuffle(const State& s, int offset) {{
  return State{{__shfl_xor_sync(0xffffffffu, s.n, offset), __shfl_xor_sync(0xffffffffu, s.mean, offset),
               __shfl_xor_sync(0xffffffffu, s.m2, offset)}};
}}

extern "C" __global__ void __launch_bounds__(256, 2) {name}(
    float* __restrict__ y, long long y_pitch, float* __restrict__ mean, const float* __restrict__ x, long long x_pitch,
    const float* __restrict__ weight, int cols, float eps) {{
  __shared__ State slots[8];
  {hold}
  const int row = blockIdx.x;
  State state{{0.0f, 0.0f, 0.0f}};
  for (int c = threadIdx.x; c < cols; c += blockDim.x) {{
    const float value = x[row * x_pitch + c];
    {keep}
    state = merge(state, State{{1.0f, value, 0.0f}});
  }}
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) state = merge(state, shuffle(state, offset));
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = state;
  __syncthreads();
  state = slots[0];
  for (int w = 1; w < 8; ++w) state = merge(state, slots[w]);
  const float rstd = rsqrtf(state.m2 / cols + eps);
  for (int c = threadIdx.x; c < cols; c += blockDim.x) {{
    y[row * y_pitch + c] = ({value} - state.mean) * rstd * weight[c];
  }}
  if (threadIdx.x == 0 && mean != nullptr) mean[row] = state.mean;
}}
"""
    params = [
        *(pointer("y", "float*"), pitch("y"), pointer("mean", "float*"), pointer("x", "const float*"), pitch("x")),
        *(pointer("weight", "const float*"), COLS, EPS),
    ]
    return module(text, kernel(name, params, threads=256, shared_bytes=2048 * 4 if dynamic else 0))


def scale16(ctype: str, to_float: str, to_bits: str) -> Module:
    """y = 2 x over 16-bit numbers, eight at a time through uint4."""
    name = f"scale_{ctype}"
    text = f"""
extern "C" __global__ void __launch_bounds__(32) {name}(
    {ctype}* __restrict__ y, const {ctype}* __restrict__ x, int cols) {{
  const long long row = blockIdx.x;
  for (int v = threadIdx.x; v < cols / 8; v += 32) {{
    uint4 words = __ldcs(reinterpret_cast<const uint4*>(x + row * cols) + v);
    unsigned* word = &words.x;
    for (int i = 0; i < 4; ++i) {{
      const float low = {to_float.format("word[i] & 0xffffu")}, high = {to_float.format("word[i] >> 16")};
      word[i] = {to_bits}(2.0f * low, 2.0f * high);
    }}
    __stcs(reinterpret_cast<uint4*>(y + row * cols) + v, words);
  }}
}}
"""
    params = [pointer("y", f"{ctype}*"), pointer("x", f"const {ctype}*"), COLS]
    return module(text, kernel(name, params, threads=32))


SCALE_BF16 = scale16("bfloat16", "__uint_as_float(({}) << 16)", "floats_to_bfloat162")
SCALE_F16 = scale16("float16", "half_to_float(static_cast<unsigned short>({}))", "floats_to_half2")

CLUSTER_SUM = module(
    """
// A cluster of 4 blocks owns one row; every block ends with the partial sums of all four.
extern "C" __global__ void __launch_bounds__(64) cluster_sum(
    float* __restrict__ total, const float* __restrict__ x, long long x_pitch, int cols) {
  __shared__ float warps[2];
  __shared__ float partial[4];
  const int row = blockIdx.x / 4;
  const unsigned rank = cluster_rank();
  cluster_arrive();
  float sum = 0.0f;
  for (int c = rank * 64 + threadIdx.x; c < cols; c += 256) sum += x[row * x_pitch + c];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  cluster_wait();
  if (threadIdx.x < 4) cluster_store(&partial[rank], threadIdx.x, warps[0] + warps[1]);
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) total[blockIdx.x] = partial[0] + partial[1] + partial[2] + partial[3];
}
""",
    kernel(
        "cluster_sum",
        [pointer("total", "float*"), pointer("x", "const float*"), pitch("x"), COLS],
        threads=64,
        cluster=4,
    ),
)

BULK_LOAD = module(
    """
// Two stages of rows in flight: thread 0 starts the copies, everybody waits, then the stage is given back.
extern "C" __global__ void __launch_bounds__(64) bulk_scale(
    float* __restrict__ y, const float* __restrict__ x, int rows, int cols) {
  __shared__ alignas(8) unsigned long long full[2];
  float* stage = reinterpret_cast<float*>(dynamic_shared());
  if (threadIdx.x == 0) {
    mbarrier_init(&full[0], 1);
    mbarrier_init(&full[1], 1);
    mbarrier_fence();
  }
  __syncthreads();
  const unsigned bytes = cols * 4;
  if (threadIdx.x == 0 && blockIdx.x < rows) {
    mbarrier_expect_bytes(&full[0], bytes);
    bulk_load(stage, x + static_cast<long long>(blockIdx.x) * cols, bytes, &full[0]);
  }
  unsigned turn = 0;
  for (int row = blockIdx.x; row < rows; row += gridDim.x, ++turn) {
    const int next = row + gridDim.x;
    if (threadIdx.x == 0 && next < rows) {
      mbarrier_expect_bytes(&full[(turn + 1) % 2], bytes);
      bulk_load(stage + (turn + 1) % 2 * cols, x + static_cast<long long>(next) * cols, bytes, &full[(turn + 1) % 2]);
    }
    mbarrier_wait(&full[turn % 2], turn / 2 % 2);
    float* y_row = y + static_cast<long long>(row) * cols;
    for (int c = threadIdx.x; c < cols; c += 64) y_row[c] = 3.0f * stage[turn % 2 * cols + c];
    __syncthreads();
  }
}
""",
    kernel(
        "bulk_scale",
        [pointer("y", "float*"), pointer("x", "const float*"), ROWS, COLS],
        threads=64,
        persistent=1,
        shared_bytes=2 * 128 * 4,
    ),
)

CP_ASYNC = module(
    """
// Every thread copies the 16 bytes its right neighbour needs, two groups deep.
extern "C" __global__ void __launch_bounds__(32) cp_async_rotate(float* __restrict__ y, const float* __restrict__ x) {
  __shared__ alignas(16) float held[2][128];
  for (int half = 0; half < 2; ++half) {
    cp_async_16(&held[half][4 * threadIdx.x], x + half * 128 + 4 * threadIdx.x);
    cp_async_commit();
  }
  cp_async_wait<1>();
  __syncwarp();
  for (int i = 0; i < 4; ++i) y[4 * threadIdx.x + i] = held[0][(4 * threadIdx.x + i + 4) % 128];
  cp_async_wait<0>();
  __syncwarp();
  for (int i = 0; i < 4; ++i) y[128 + 4 * threadIdx.x + i] = held[1][(4 * threadIdx.x + i + 4) % 128];
}
""",
    kernel("cp_async_rotate", [pointer("y", "float*"), pointer("x", "const float*")], threads=32, blocks=1),
)

LAST_BLOCK = module(
    """
// Column sums: partial sums of every block, added up by the block that comes last; then a second kernel doubles them.
extern "C" __global__ void __launch_bounds__(32) column_sum(
    float* __restrict__ total, const float* __restrict__ x, float* __restrict__ partial, unsigned* __restrict__ counter,
    int rows, int cols) {
  __shared__ float mine[32];
  __shared__ unsigned ticket;
  mine[threadIdx.x] = 0.0f;
  __syncthreads();
  for (int row = blockIdx.x; row < rows; row += gridDim.x)
    for (int c = threadIdx.x; c < cols; c += 32) atomicAdd(&mine[c], x[static_cast<long long>(row) * cols + c]);
  __syncthreads();
  for (int c = threadIdx.x; c < cols; c += 32) partial[blockIdx.x * cols + c] = mine[c];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) ticket = atomicAdd(counter, 1u);
  __syncthreads();
  if (ticket != gridDim.x - 1) return;
  __threadfence();
  for (int c = threadIdx.x; c < cols; c += 32) {
    float sum = 0.0f;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b * cols + c];
    total[c] = sum;
  }
  if (threadIdx.x == 0) *counter = 0u;
}

extern "C" __global__ void __launch_bounds__(32) double_it(float* __restrict__ total, int cols) {
  for (int c = threadIdx.x; c < cols; c += 32) total[c] *= 2.0f;
}
""",
    kernel(
        "column_sum",
        [
            *(pointer("total", "float*"), pointer("x", "const float*"), workspace("partial", "float*", 16)),
            *(workspace("counter", "unsigned*"), ROWS, COLS),
        ],
        threads=32,
        blocks=5,
    ),
    kernel("double_it", [pointer("total", "float*"), COLS], threads=32, blocks=1),
    workspace=Workspace(fixed=16 + 5 * 32 * 4),
)

COOPERATIVE = module(
    """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

struct Pair { float sum, largest; };
struct Combine {
  __device__ Pair operator()(const Pair& a, const Pair& b) const {
    return Pair{a.sum + b.sum, fmaxf(a.largest, b.largest)};
  }
};

// Eight threads own a row.
extern "C" __global__ void __launch_bounds__(64) cooperative(
    float* __restrict__ total, float* __restrict__ largest, const float* __restrict__ x, int rows, int cols) {
  cg::thread_block block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  const int row = blockIdx.x * 8 + threadIdx.x / 8;
  if (row >= rows) return;
  Pair state{0.0f, -__int_as_float(0x7f800000)};
  for (int c = tile.thread_rank(); c < cols; c += tile.size()) {
    const float value = x[row * cols + c];
    state = Combine()(state, Pair{value, value});
  }
  state = cg::reduce(tile, state, Combine());
  tile.sync();
  if (tile.thread_rank() == 0) {
    total[row] = state.sum;
    largest[row] = state.largest;
  }
}
""",
    kernel(
        "cooperative",
        [pointer("total", "float*"), pointer("largest", "float*"), pointer("x", "const float*"), ROWS, COLS],
        threads=64,
        rows_per_block=8,
    ),
)

NAMED_BARRIER = module(
    """
// Two rows a block, 64 threads each, which meet at barriers of their own, a different number of times.
extern "C" __global__ void __launch_bounds__(128) named_sum(
    float* __restrict__ total, const float* __restrict__ x, int cols) {
  __shared__ float slots[2][2];
  const int group = threadIdx.x / 64, lane = threadIdx.x % 64;
  const int row = blockIdx.x * 2 + group;
  float sum = 0.0f;
  for (int turn = 0; turn <= group; ++turn) {
    sum = 0.0f;
    for (int c = lane; c < cols; c += 64) sum += x[row * cols + c];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane % 32 == 0) slots[group][lane / 32] = sum;
    named_barrier(1 + group, 64);
    sum = slots[group][0] + slots[group][1];
    named_barrier(1 + group, 64);
  }
  if (lane == 0) total[row] = sum;
}
""",
    kernel(
        "named_sum", [pointer("total", "float*"), pointer("x", "const float*"), COLS], threads=128, rows_per_block=2
    ),
)

LAYERNORM_STATIC, LAYERNORM_DYNAMIC = layernorm(dynamic=False), layernorm(dynamic=True)

SOUND = {
    "row_sum": ROW_SUM,
    "layernorm_static": LAYERNORM_STATIC,
    "layernorm_dynamic": LAYERNORM_DYNAMIC,
    "scale_bf16": SCALE_BF16,
    "scale_f16": SCALE_F16,
    "cluster_sum": CLUSTER_SUM,
    "bulk_load": BULK_LOAD,
    "cp_async": CP_ASYNC,
    "last_block": LAST_BLOCK,
    "cooperative": COOPERATIVE,
    "named_barrier": NAMED_BARRIER,
}

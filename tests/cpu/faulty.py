"""Modules with one planted fault each; the line that must be named carries the mark HERE (both lines of a race)."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.codegen.module import Module, Param
from normgen.cpu import FaultKind
from tests.cpu.cases import COLS, ROWS, kernel, module, pitch, pointer


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A kernel over x: [4, 60] f32 in rows of 64, y: [4, 64] f32, and the fault it must show."""

    kind: FaultKind
    module: Module
    says: str


_PARAMS: tuple[Param, ...] = (pointer("y", "float*"), pointer("x", "const float*"), pitch("x"), ROWS, COLS)
_SIGNATURE = "(float* __restrict__ y, const float* __restrict__ x, long long x_pitch, int rows, int cols)"


def _planted(
    kind: FaultKind, says: str, body: str, *, helpers: str = "", entry_mark: str = "", **launch: int
) -> Planted:
    text = f'\n{helpers}\nextern "C" __global__ void __launch_bounds__(64) planted{_SIGNATURE} {{{entry_mark}{body}}}\n'
    return Planted(
        kind=kind, module=module(text, kernel("planted", _PARAMS, **{"threads": 64, "blocks": 1, **launch})), says=says
    )


PLANTED = {
    "read past the tensor": _planted(
        FaultKind.OUT_OF_BOUNDS,
        "reads 4 bytes at row 4, byte",
        """
  for (int c = threadIdx.x; c < cols; c += 64)
  for (int r = 0; r <= rows; ++r)
  y[c] = x[r * x_pitch + c];  // HERE
""",
    ),
    "read in the gap between cols and pitch": _planted(
        FaultKind.OUT_OF_BOUNDS,
        "row 0, byte 240 of 'x', which has 4 rows of 240 bytes",
        """
  y[threadIdx.x] = x[threadIdx.x];  // HERE
""",
    ),
    "a vector that overlaps the end of a row": _planted(
        FaultKind.OUT_OF_BOUNDS,
        "reads 16 bytes",
        """
  const float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];  // HERE
  y[threadIdx.x] = v.x;
""",
    ),
    "write to an input": _planted(
        FaultKind.OUT_OF_BOUNDS,
        "'x', which the kernel only reads",
        """
  const_cast<float*>(x)[0] = 1.0f;  // HERE
""",
    ),
    "null pointer": _planted(
        FaultKind.OUT_OF_BOUNDS,
        "belongs to no tensor",
        """
  float* none = y - (y - static_cast<float*>(nullptr));
  none[threadIdx.x] = 1.0f;  // HERE
""",
    ),
    "in a helper, through the shim": _planted(
        FaultKind.OUT_OF_BOUNDS,
        "writes 4 bytes",
        """
  put(y, 64 * 4 + threadIdx.x);
""",
        helpers="""
__device__ inline void put(float* to, int at) {
  __stcs(reinterpret_cast<unsigned*>(to) + at, 1u);  // HERE
}
""",
    ),
    "misaligned float4": _planted(
        FaultKind.MISALIGNED,
        "multiple of 4 only",
        """
  const float4 v = *reinterpret_cast<const float4*>(x + 1);  // HERE
  y[threadIdx.x] = v.x + v.w;
""",
    ),
    "misaligned uint2 through the shim": _planted(
        FaultKind.MISALIGNED,
        "multiple of 4 only",
        """
  *reinterpret_cast<uint2*>(y + 2 * threadIdx.x % 32 + 1) = make_uint2(1u, 2u);  // HERE
""",
    ),
    "misaligned asynchronous copy": _planted(
        FaultKind.MISALIGNED,
        "must be a multiple of 16",
        """
  __shared__ alignas(16) float s[64];
  if (threadIdx.x == 0) cp_async_16(s, x + 1);  // HERE
""",
    ),
    "static shared array overrun": _planted(
        FaultKind.OUT_OF_BOUNDS_SHARED,
        "index 32 is outside the array",
        """
  __shared__ float s[32];
  s[threadIdx.x] = 1.0f;  // HERE
  __syncthreads();
  y[threadIdx.x] = s[0];
""",
    ),
    "static shared overrun through a pointer": _planted(
        FaultKind.OUT_OF_BOUNDS_SHARED,
        "outside every shared variable",
        """
  __shared__ float s[32];
  __shared__ float t[32];
  float* p = threadIdx.x < 64 ? s : t;
  p[threadIdx.x] = 1.0f;  // HERE
""",
    ),
    "dynamic shared overrun": _planted(
        FaultKind.OUT_OF_BOUNDS_SHARED,
        "byte 128 of dynamic shared memory, which has 128 bytes",
        """
  float* s = reinterpret_cast<float*>(dynamic_shared());
  s[threadIdx.x] = 1.0f;  // HERE
""",
        shared_bytes=128,
    ),
    "register array overrun": _planted(
        FaultKind.OUT_OF_BOUNDS,
        "index 8 is outside the array",
        """
  float held[8];
  for (int i = 0; i < 8 + rows; ++i)
  held[i] = x[i];  // HERE
  y[threadIdx.x] = held[cols % 8];
""",
    ),
    "overrun of a vector's elements": _planted(
        FaultKind.OUT_OF_BOUNDS,
        "index 4 is outside the array",
        """
  Four held[2] = {};
  for (int i = 0; i < 1 + rows; ++i)
  held[0].of[i] = x[i];  // HERE
  y[threadIdx.x] = held[1].of[cols % 4];
""",
        helpers="struct Four { float of[4]; };",
    ),
    "more local memory than a thread has": _planted(
        FaultKind.OUT_OF_BOUNDS,
        "local memory is exhausted",
        """
  volatile float held[100000];
  held[threadIdx.x] = 1.0f;
  y[threadIdx.x] = held[threadIdx.x];
""",
        entry_mark="  // HERE",
    ),
    "read of unwritten shared memory": _planted(
        FaultKind.UNINITIALISED_SHARED,
        "before anyone wrote them",
        """
  __shared__ float s[64];
  if (threadIdx.x < 63) s[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];  // HERE
""",
    ),
    "shared memory of the block before": _planted(
        FaultKind.UNINITIALISED_SHARED,
        "before anyone wrote them",
        """
  __shared__ float s;
  if (blockIdx.x == 0 && threadIdx.x == 0) s = 1.0f;
  __syncthreads();
  y[64 * blockIdx.x + threadIdx.x] = s;  // HERE
""",
        blocks=2,
    ),
    "cp.async read before the wait": _planted(
        FaultKind.UNINITIALISED_SHARED,
        "before the asynchronous copy into them was waited for",
        """
  __shared__ alignas(16) float s[64];
  if (threadIdx.x < 8) {
    cp_async_16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
    cp_async_commit();
    cp_async_wait<1>();
    y[threadIdx.x] = s[4 * threadIdx.x];  // HERE
    cp_async_wait<0>();
  }
""",
    ),
    "bulk copy read before the wait": _planted(
        FaultKind.UNINITIALISED_SHARED,
        "before the asynchronous copy into them was waited for",
        """
  __shared__ alignas(16) float s[32];
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_fence();
    mbarrier_expect_bytes(&full, 128);
    bulk_load(s, x, 128, &full);
    y[0] = s[0];  // HERE
    mbarrier_wait(&full, 0);
  }
""",
    ),
    "no barrier between write and read": _planted(
        FaultKind.SHARED_RACE,
        "with no barrier since thread",
        """
  __shared__ float s[64];
  s[threadIdx.x] = 1.0f;
  y[threadIdx.x] = s[threadIdx.x ^ 1];  // HERE
""",
    ),
    "no barrier between read and the next write": _planted(
        FaultKind.SHARED_RACE,
        "with no barrier since thread",
        """
  __shared__ float s[64];
  for (int r = 0; r < rows; ++r) {
    s[threadIdx.x] = x[r * x_pitch];  // HERE
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];  // HERE
  }
""",
    ),
    "a warp barrier between threads of two warps": _planted(
        FaultKind.SHARED_RACE,
        "with no barrier since thread",
        """
  __shared__ float s[64];
  s[threadIdx.x] = 1.0f;
  __syncwarp();
  y[threadIdx.x] = s[63 - threadIdx.x];  // HERE
""",
    ),
    "shuffle in place of a barrier": _planted(
        FaultKind.SHARED_RACE,
        "with no barrier since thread",
        """
  __shared__ float s[64];
  s[threadIdx.x] = 1.0f;
  float v = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  y[threadIdx.x] = v * s[threadIdx.x ^ 1];  // HERE
""",
    ),
    "asynchronous copy into a buffer still read": _planted(
        FaultKind.SHARED_RACE,
        "writes shared byte",
        """
  __shared__ alignas(16) float s[64];
  s[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
  if (threadIdx.x == 63) cp_async_16(s, x);  // HERE
  cp_async_commit();
  cp_async_wait<0>();
""",
    ),
    "cluster store without a barrier after it": _planted(
        FaultKind.SHARED_RACE,
        "of block rank",
        """
  __shared__ float s[2];
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) {
    cluster_store(&s[cluster_rank()], 0, 1.0f);
    cluster_store(&s[cluster_rank()], 1, 1.0f);
  }
  __syncthreads();
  if (cluster_rank() == 0) y[threadIdx.x] = s[1];  // HERE
  cluster_arrive();
  cluster_wait();
""",
        blocks=2,
        cluster=2,
    ),
    "cluster store to a block that may not run yet": _planted(
        FaultKind.SHARED_RACE,
        "that block may not run yet",
        """
  __shared__ float s;
  if (threadIdx.x == 0) cluster_store(&s, cluster_rank() ^ 1, 1.0f);  // HERE
  cluster_arrive();
  cluster_wait();
  y[64 * blockIdx.x + threadIdx.x] = s;
""",
        blocks=2,
        cluster=2,
    ),
    "value sent to a block and read without a wait": _planted(
        FaultKind.UNINITIALISED_SHARED,
        "before the asynchronous copy into them was waited for",
        """
  __shared__ float s[2];
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_cluster_fence();
  }
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) {
    mbarrier_expect_bytes(&full, 8);
    cluster_send(&s[cluster_rank()], 0, 1.0f, &full);
    cluster_send(&s[cluster_rank()], 1, 1.0f, &full);
  }
  __syncthreads();
  y[64 * blockIdx.x + threadIdx.x] = s[cluster_rank()];  // HERE
  mbarrier_wait(&full, 0);
""",
        blocks=2,
        cluster=2,
    ),
    "value sent over one that another block still reads": _planted(
        FaultKind.SHARED_RACE,
        "writes shared byte",
        """
  __shared__ float s[2];
  __shared__ unsigned long long full[2];
  if (threadIdx.x < 2) {
    mbarrier_init(full + threadIdx.x, 1);
    mbarrier_cluster_fence();
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  for (int turn = 0; turn < 2; ++turn) {
    if (threadIdx.x == 0) mbarrier_expect_bytes(full + turn, 8);
    if (threadIdx.x < 2) cluster_send(&s[cluster_rank()], threadIdx.x, 1.0f, full + turn);  // HERE
    mbarrier_wait(full + turn, 0);
    y[64 * blockIdx.x + threadIdx.x] = s[1 - cluster_rank()];  // HERE
  }
""",
        blocks=2,
        cluster=2,
    ),
    "__syncthreads in a branch": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "the other 32 have exited",
        """
  if (threadIdx.x < 32) __syncthreads();  // HERE
""",
    ),
    "__syncthreads after threads have left": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "4 have exited",
        """
  if (threadIdx.x >= cols) return;
  __syncthreads();  // HERE
  y[threadIdx.x] = 1.0f;
""",
    ),
    "two different __syncthreads": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "__syncthreads at line 3, called from line 7 met __syncthreads at line 3, called from line 10",
        """
  if (threadIdx.x >= 32) {
    meet();
    y[threadIdx.x] = 1.0f;
  } else {
    meet();
    y[threadIdx.x] = 2.0f;
  }
""",
        helpers="""
__device__ inline void meet() { __syncthreads(); }  // HERE
""",
    ),
    "__syncthreads against a named barrier": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "32 threads wait in a named barrier",
        """
  if (threadIdx.x < 32) named_barrier(1, 64);
  else __syncthreads();  // HERE
""",
    ),
    "shuffle by half of its mask": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "not all of them reach",
        """
  float v = 1.0f;
  if (threadIdx.x % 32 < 16) v = __shfl_xor_sync(0xffffffffu, v, 1);  // HERE
  __syncthreads();
  y[threadIdx.x] = v;
""",
    ),
    "two different shuffles": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "__shfl_xor_sync at line 6 met __shfl_xor_sync at line 5",
        """
  float v = threadIdx.x;
  if (threadIdx.x % 2 == 0) v = __shfl_xor_sync(0xffffffffu, v, 1);  // HERE
  else v = __shfl_xor_sync(0xffffffffu, v, 1);  // HERE
  y[threadIdx.x] = v;
""",
    ),
    "a shuffle against another kind of it": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "__shfl_down_sync at line 5 met __shfl_up_sync at line 6",
        """
  float v = threadIdx.x;
  if (threadIdx.x % 2 == 1) v = __shfl_down_sync(0xffffffffu, v, 2);  // HERE
  else v = __shfl_up_sync(0xffffffffu, v, 2);  // HERE
  y[threadIdx.x] = v;
""",
    ),
    "a shuffle in a function that two branches call": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "__shfl_sync at line 2, called from line 9 met __shfl_sync at line 2, called from line 6",
        """
  if (threadIdx.x % 32 < 16) {
    const float v = first(1.0f);
    y[threadIdx.x] = v;
  } else {
    const float v = first(2.0f);
    y[threadIdx.x] = 2.0f * v;
  }
""",
        helpers="""__device__ __forceinline__ float first(float v) { return __shfl_sync(0xffffffffu, v, 0); }  // HERE
""",
    ),
    "two different votes": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "__any_sync at line 6 met __all_sync at line 5",
        """
  int v;
  if (threadIdx.x % 32 < 7) v = __all_sync(0xffffffffu, threadIdx.x > 3);  // HERE
  else v = __any_sync(0xffffffffu, threadIdx.x > 3);  // HERE
  y[threadIdx.x] = v;
""",
    ),
    "two different ballots": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "__ballot_sync at line 6 met __ballot_sync at line 5",
        """
  unsigned v;
  if (threadIdx.x % 32 < 7) v = __ballot_sync(0xffffffffu, threadIdx.x > 3);  // HERE
  else v = __ballot_sync(0xffffffffu, threadIdx.x > 9);  // HERE
  y[threadIdx.x] = v;
""",
    ),
    "two different named barriers for the lanes of a warp": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "named_barrier at line 5 met named_barrier at line 4",
        """
  if (threadIdx.x % 32 < 16) named_barrier(1, 64);  // HERE
  else named_barrier(1, 64);  // HERE
  y[threadIdx.x] = 1.0f;
""",
    ),
    "shuffle from a lane that has exited": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "which has exited",
        """
  if (threadIdx.x % 32 >= 16) return;
  y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 16);  // HERE
""",
    ),
    "mask without the caller": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "does not name it",
        """
  __syncwarp(0x0000ffffu);  // HERE
""",
    ),
    "bytes that never come": _planted(
        FaultKind.DEADLOCK,
        "0 arrivals and 16 bytes are missing",
        """
  __shared__ alignas(16) float s[32];
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_fence();
    mbarrier_expect_bytes(&full, 128);
    bulk_load(s, x, 112, &full);
  }
  __syncthreads();
  mbarrier_wait(&full, 0);  // HERE
""",
    ),
    "named barrier that waits for too many": _planted(
        FaultKind.DEADLOCK,
        "expects 96 threads, and 64 have arrived",
        """
  named_barrier(2, 96);  // HERE
""",
    ),
    "cluster wait without arrival": _planted(
        FaultKind.DIVERGENT_BARRIER,
        "without having arrived",
        """
  cluster_wait();  // HERE
""",
        blocks=2,
        cluster=2,
    ),
    "read before the wait of a dependent launch": _planted(
        FaultKind.TOO_EARLY,
        "reads 'x' before waiting for the kernels in front",
        """
  const float value = x[threadIdx.x % cols];  // HERE
  griddepcontrol_wait();
  y[threadIdx.x] = value;
""",
        dependent=True,
    ),
    "write before the wait of a dependent launch": _planted(
        FaultKind.TOO_EARLY,
        "writes 'y' before waiting for the kernels in front",
        """
  griddepcontrol_launch_dependents();
  y[threadIdx.x] = 0.0f;  // HERE
  griddepcontrol_wait();
""",
        dependent=True,
    ),
    "wait of another thread": _planted(
        FaultKind.TOO_EARLY,
        "reads 'x' before waiting",
        """
  if (threadIdx.x == 0) griddepcontrol_wait();
  __syncthreads();
  y[threadIdx.x] = x[threadIdx.x % cols];  // HERE
""",
        dependent=True,
    ),
    "loop without end or memory access": _planted(
        FaultKind.TIMEOUT,
        "still runs",
        """
  volatile_loop();
""",
        helpers="""
__device__ inline void volatile_loop() {
  for (;;) asm volatile("");  // HERE
}
""",
    ),
    "spinning on memory": _planted(
        FaultKind.TIMEOUT,
        "still runs",
        """
  volatile float* flag = y;
  while (flag[0] != 1.0f) {}  // HERE
""",
    ),
}

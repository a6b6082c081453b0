"""As faulty.py: faults of order, which are races between blocks, missing fences, and mbarriers used too early."""

from __future__ import annotations

from normgen.cpu import FaultKind
from tests.cpu.cases import kernel, module, pointer
from tests.cpu.faulty import Planted

_PARAMS = (pointer("y", "float*"), pointer("x", "const float*"), pointer("counter", "unsigned*"))
_SIGNATURE = "(float* __restrict__ y, const float* __restrict__ x, unsigned* __restrict__ counter)"


def ordered(kind: FaultKind, says: str, body: str, *, blocks: int = 2, cluster: int = 1) -> Planted:
    """64 threads a block over y: [4, 64], x: [4, 60] in rows of 64, and a counter that is 0."""
    text = f'\nextern "C" __global__ void __launch_bounds__(64) planted{_SIGNATURE} {{{body}}}\n'
    return Planted(
        kind=kind,
        module=module(text, kernel("planted", _PARAMS, threads=64, blocks=blocks, cluster=cluster)),
        says=says,
    )


# Every block leaves a row of sums, and the last one to arrive adds them. Without a mark it is right.
LAST_BLOCK_ADDS = """
  __shared__ bool is_last;
  const int t = threadIdx.x;
  y[64 * blockIdx.x + t] = 1.0f;
  __threadfence();  // before
  __syncthreads();
  if (t == 0) is_last = atomicAdd(counter, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  __threadfence();  // behind
  float sum = 0.0f;
  for (unsigned block = 0; block < gridDim.x; ++block)
  sum += y[64 * block + t];  // HERE
  y[64 * 3 + t] = sum;
  if (t == 0) *counter = 0u;
"""
LAST_BLOCK_CONVERTS = """
  __shared__ bool is_last;
  const int t = threadIdx.x;
  atomicAdd(y + t, 1.0f);
  __threadfence();  // before
  __syncthreads();
  if (t == 0) is_last = atomicAdd(counter, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  __threadfence();  // behind
  const float sum = __ldcg(y + t);  // HERE
  y[64 * 3 + t] = sum;
"""
WITHOUT_BEFORE, WITHOUT_BEHIND = "  __threadfence();  // before\n", "  __threadfence();  // behind\n"

_COPY = """
  __shared__ alignas(16) float s[64];
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_fence();
  }
  __syncthreads();  // all see it
  if (threadIdx.x == 0) {
    mbarrier_expect_bytes(&full, 128);
    bulk_load(s, x, 128, &full);  // COPY
  }
  mbarrier_wait(&full, 0);  // WAIT
  y[threadIdx.x] = s[threadIdx.x % 32];
"""
_SEND = """
  __shared__ float s[2];
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_cluster_fence();
  }
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) mbarrier_expect_bytes(&full, 8);
  if (threadIdx.x < 2) cluster_send(&s[cluster_rank()], threadIdx.x, 1.0f, &full);  // HERE
  mbarrier_wait(&full, 0);
  y[64 * blockIdx.x + threadIdx.x] = s[0] + s[1];
  cluster_arrive();
  cluster_wait();
"""

_RACES = {
    "two blocks write the same place": ordered(
        FaultKind.GLOBAL_RACE,
        "writes row 0, byte 0 of 'y', which thread 0 of block 0 wrote: no barrier and no counter orders the two",
        """
  y[threadIdx.x] = blockIdx.x;  // HERE
""",
    ),
    "a block reads what another wrote before an arrival that publishes nothing": ordered(
        FaultKind.GLOBAL_RACE,
        "wrote: no barrier and no counter orders the two",
        """
  y[64 * blockIdx.x + threadIdx.x] = 1.0f;
  cluster_arrive_relaxed();
  cluster_wait();
  y[64 * blockIdx.x + threadIdx.x] += y[64 * (blockIdx.x ^ 1) + threadIdx.x];  // HERE
""",
        cluster=2,
    ),
    "two blocks write the same value": ordered(
        FaultKind.GLOBAL_RACE,
        "of block 0 wrote",
        """
  y[threadIdx.x] = 1.0f;  // HERE
""",
    ),
    "a read of what another block writes": ordered(
        FaultKind.GLOBAL_RACE,
        "reads row 0, byte 0 of 'y', which thread 0 of block 0 wrote",
        """
  if (blockIdx.x == 0) y[threadIdx.x] = 1.0f;
  else y[64 + threadIdx.x] = y[threadIdx.x];  // HERE
""",
    ),
    "a write of what another block reads": ordered(
        FaultKind.GLOBAL_RACE,
        "writes row 0, byte 0 of 'y', which thread 0 of block 0 read",
        """
  if (blockIdx.x == 0) y[64 + threadIdx.x] = y[threadIdx.x];
  else y[threadIdx.x] = 1.0f;  // HERE
""",
    ),
    "a write of what an earlier block and its own thread have read": ordered(
        FaultKind.GLOBAL_RACE,
        "of block 1 read",
        """
  const float old = y[threadIdx.x];
  if (blockIdx.x < 2) y[64 * (1 + blockIdx.x) + threadIdx.x] = old;
  else y[threadIdx.x] = old + 1.0f;  // HERE
""",
        blocks=3,
    ),
    "a sum without atomics": ordered(
        FaultKind.GLOBAL_RACE,
        "which thread 0 of block 0 wrote",
        """
  y[threadIdx.x] += 1.0f;  // HERE
""",
    ),
    "a plain sum beside an atomic one": ordered(
        FaultKind.GLOBAL_RACE,
        "of block 0 updated atomically",
        """
  if (blockIdx.x == 0) atomicAdd(y + threadIdx.x, 1.0f);
  else y[threadIdx.x] += 1.0f;  // HERE
""",
    ),
    "threads of a block write the same place": ordered(
        FaultKind.GLOBAL_RACE,
        "writes row 0, byte 0 of 'y', which thread 0 of block 0 wrote",
        """
  y[threadIdx.x / 2] = threadIdx.x;  // HERE
""",
        blocks=1,
    ),
    "blocks of a cluster with a barrier of the block only": ordered(
        FaultKind.GLOBAL_RACE,
        "of block 0 wrote",
        """
  y[64 * blockIdx.x + threadIdx.x] = 1.0f;
  __syncthreads();
  if (blockIdx.x == 1)
  y[128 + threadIdx.x] = y[threadIdx.x];  // HERE
""",
        cluster=2,
    ),
    "a block that counts before its threads have written": ordered(
        FaultKind.GLOBAL_RACE,
        "no barrier stands between that access and the atomic update that tells of it",
        """
  __shared__ bool is_last;
  y[64 * blockIdx.x + threadIdx.x] = 1.0f;
  __threadfence();
  if (threadIdx.x == 63) is_last = atomicAdd(counter, 1u) + 1 == gridDim.x;
  __syncthreads();
  __threadfence();
  if (!is_last) return;
  float sum = y[threadIdx.x];  // HERE
  y[64 * 3 + threadIdx.x] = sum;
""",
    ),
}

_FENCES = {
    "no fence before the counter": ordered(
        FaultKind.MISSING_FENCE,
        "no __threadfence() stands between that access and the atomic update that tells of it",
        LAST_BLOCK_ADDS.replace(WITHOUT_BEFORE, ""),
    ),
    "no fence behind the counter": ordered(
        FaultKind.MISSING_FENCE,
        "no __threadfence() follows the atomic update that tells of it",
        LAST_BLOCK_ADDS.replace(WITHOUT_BEHIND, "").replace(
            "if (t == 0) *counter", "__threadfence(); if (t == 0) *counter"
        ),
    ),
    "no fence between atomic sums and the counter": ordered(
        FaultKind.MISSING_FENCE,
        "of block 0 updated atomically: no __threadfence() stands between",
        LAST_BLOCK_CONVERTS.replace(WITHOUT_BEFORE, ""),
    ),
    "a fence by the thread that counts, in front of the barrier": ordered(
        FaultKind.MISSING_FENCE,
        "no __threadfence() stands between",
        LAST_BLOCK_ADDS.replace(WITHOUT_BEFORE, "  if (t == 0) __threadfence();\n"),
    ),
    "bulk copy with an mbarrier that was not fenced": ordered(
        FaultKind.MISSING_FENCE,
        "no mbarrier_fence() since its initialisation",
        _COPY.replace("    mbarrier_fence();\n", "").replace("COPY", "HERE"),
        blocks=1,
    ),
    "bulk copy over what threads wrote": ordered(
        FaultKind.MISSING_FENCE,
        "overwrites shared byte",
        _COPY.replace("  __syncthreads();", "  s[threadIdx.x] = 0.0f;\n  __syncthreads();").replace("COPY", "HERE"),
        blocks=1,
    ),
    "value sent with an mbarrier that was not fenced": ordered(
        FaultKind.MISSING_FENCE,
        "no mbarrier_cluster_fence()",
        _SEND.replace("    mbarrier_cluster_fence();\n", ""),
        cluster=2,
    ),
    "value sent with an mbarrier that another thread fenced": ordered(
        FaultKind.MISSING_FENCE,
        "no mbarrier_cluster_fence()",
        _SEND.replace(
            "    mbarrier_cluster_fence();\n  }",
            "  }\n  __syncthreads();\n  if (threadIdx.x == 1) mbarrier_cluster_fence();",
        ),
        cluster=2,
    ),
}

_MBARRIERS = {
    "an mbarrier that nobody initialised": ordered(
        FaultKind.MBARRIER,
        "uses an mbarrier that block rank 0 has not initialised",
        """
  __shared__ unsigned long long full;
  mbarrier_arrive(&full);  // HERE
""",
        blocks=1,
    ),
    "value sent with an mbarrier that nobody initialised": ordered(
        FaultKind.MBARRIER,
        "that block rank 1 has not initialised",
        """
  __shared__ float s;
  __shared__ unsigned long long full;
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) cluster_send(&s, 1, 1.0f, &full);  // HERE
""",
        cluster=2,
    ),
    "wait with no barrier since the initialisation": ordered(
        FaultKind.MBARRIER,
        "uses an mbarrier with no barrier since thread 0 of block rank 0 initialised it",
        _COPY.replace("  __syncthreads();  // all see it\n", "").replace("WAIT", "HERE"),
        blocks=1,
    ),
    "arrival with no barrier since the initialisation": ordered(
        FaultKind.MBARRIER,
        "thread 1 of block rank 0 uses an mbarrier with no barrier since thread 0",
        """
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) mbarrier_init(&full, 64);
  mbarrier_arrive(&full);  // HERE
""",
        blocks=1,
    ),
    "an mbarrier initialised twice": ordered(
        FaultKind.MBARRIER,
        "initialises an mbarrier that is in use already",
        """
  __shared__ unsigned long long full;
  for (int turn = 0; turn < 2; ++turn) {
    if (threadIdx.x == 0) mbarrier_init(&full, 64);  // HERE
    __syncthreads();
    mbarrier_arrive(&full);
    mbarrier_wait(&full, 0);
    __syncthreads();
  }
""",
        blocks=1,
    ),
    "value sent with an mbarrier that is initialised behind the arrival": ordered(
        FaultKind.MBARRIER,
        "uses an mbarrier with no barrier since thread 0 of block rank 0 initialised it",
        _SEND.replace(
            "  if (threadIdx.x == 0) {\n    mb", "  cluster_arrive();\n  if (threadIdx.x == 0) {\n    mb", 1
        ).replace("  }\n  cluster_arrive();\n", "  }\n  __syncthreads();\n", 1),
        cluster=2,
    ),
}

_UNAWAITED = {
    "a block ends before its bulk copy has come": ordered(
        FaultKind.UNAWAITED,
        "a block ends while 128 bytes that it asked for are on their way to shared memory",
        _COPY.split("  mbarrier_wait")[0].replace("bulk_load(", "/* HERE */ bulk_load("),
    ),
    "a thread ends before its own copy has come": ordered(
        FaultKind.UNAWAITED,
        "a thread ends while 16 bytes that it asked for are on their way to shared memory",
        """
  __shared__ alignas(16) float s[256];
  if (threadIdx.x < 15)
  cp_async<16>(s + 4 * threadIdx.x, x + 4 * threadIdx.x);  // HERE
  cp_async_commit();
""",
    ),
}

ORDER = {**_RACES, **_FENCES, **_MBARRIERS, **_UNAWAITED}

# The same kernels with their barriers and fences, and other legal ways: no fault.
LEGAL = {
    "the last block adds": (LAST_BLOCK_ADDS, 1),
    "the last block converts": (LAST_BLOCK_CONVERTS, 1),
    "one thread fences for its block": (
        LAST_BLOCK_ADDS.replace(WITHOUT_BEFORE, "")
        .replace(WITHOUT_BEHIND, "")
        .replace(
            "is_last = atomicAdd(counter, 1u) + 1 == gridDim.x;",
            "{ __threadfence(); is_last = atomicAdd(counter, 1u) + 1 == gridDim.x; __threadfence(); }",
        ),
        1,
    ),
    "the last block of clusters adds": (LAST_BLOCK_ADDS, 2),
    "bulk copy": (_COPY.replace("y[", "y[64 * blockIdx.x + "), 1),
    "bulk copy over what threads wrote, fenced": (
        _COPY.replace("y[", "y[64 * blockIdx.x + ").replace(
            "  __syncthreads();", "  s[threadIdx.x] = 0.0f;\n  mbarrier_fence();\n  __syncthreads();"
        ),
        1,
    ),
    "values sent": (_SEND, 2),
    "__syncwarp at two places": (
        """
  __shared__ float s[64];
  s[threadIdx.x] = 1.0f;
  if (threadIdx.x % 2 == 0) __syncwarp();
  else __syncwarp();
  y[64 * blockIdx.x + threadIdx.x] = s[threadIdx.x ^ 1];
""",
        1,
    ),
    "a named barrier at two places, of two warps": (
        """
  __shared__ float s[64];
  s[threadIdx.x] = 1.0f;
  if (threadIdx.x < 32) named_barrier(1, 64);
  else named_barrier(1, 64);
  y[64 * blockIdx.x + threadIdx.x] = s[threadIdx.x ^ 32];
""",
        1,
    ),
    "shuffles of two parts of a warp": (
        """
  float v = threadIdx.x;
  if (threadIdx.x % 32 < 16) v = __shfl_xor_sync(0x0000ffffu, v, 1);
  else v = __shfl_xor_sync(0xffff0000u, v, 2);
  y[64 * blockIdx.x + threadIdx.x] = v;
""",
        1,
    ),
    "atomic sums": ("\n  atomicAdd(y + threadIdx.x, 1.0f);\n", 1),
    "blocks of a cluster around its barrier": (
        """
  y[64 * blockIdx.x + threadIdx.x] = 1.0f;
  cluster_arrive();
  cluster_wait();
  const float other = y[64 * (blockIdx.x ^ 1) + threadIdx.x];
  cluster_arrive();
  cluster_wait();
  y[64 * blockIdx.x + threadIdx.x] = 2.0f * other;
""",
        2,
    ),
}

"""The kernels the stopwatch itself needs: an elementwise copy (half of the roof) and a reader that empties the L2.

Above 512 MB a device-to-device copy falls to 2.75 TB/s where this kernel moves 4.2 TB/s (H200), so the roof is
the better of the two.
"""

from __future__ import annotations

from normgen.codegen.module import Kernel, Launch, Module, Param, Source

THREADS = 256
VECTORS_PER_THREAD = 4
VECTOR_BYTES = 16

_TEXT = """\
// Each thread moves four 16-byte vectors, all loads before the first store, past the caches' priorities.
extern "C" __global__ void __launch_bounds__(256) copy_elements(uint4* __restrict__ target,
                                                                const uint4* __restrict__ source, int vectors) {
    const long long first = blockIdx.x * 1024LL + threadIdx.x;
    uint4 held[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if (first + k * 256 < vectors) held[k] = __ldcs(source + first + k * 256);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if (first + k * 256 < vectors) __stcs(target + first + k * 256, held[k]);
    }
}

// Reads everything and keeps nothing: the store happens only for a sum that zeroed memory never has.
// A fill would leave dirty lines behind, and the next kernel would pay for writing them back.
extern "C" __global__ void __launch_bounds__(256) read_elements(uint4* __restrict__ target,
                                                                const uint4* __restrict__ source, int vectors) {
    const long long first = blockIdx.x * 1024LL + threadIdx.x;
    unsigned mixed = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if (first + k * 256 < vectors) {
            const uint4 v = source[first + k * 256];
            mixed |= v.x | v.y | v.z | v.w;
        }
    }
    if (mixed != 0) target[0] = make_uint4(mixed, mixed, mixed, mixed);
}
"""


def roof_module(name: str) -> Module:
    """The module that launches `copy_elements` or `read_elements`: tensors target and source, rows = vectors."""
    params = (
        Param(name="target", ctype="uint4*", source=Source.TENSOR, key="target"),
        Param(name="source", ctype="const uint4*", source=Source.TENSOR, key="source"),
        Param(name="vectors", ctype="int", source=Source.ROWS),
    )
    launch = Launch(threads=THREADS, rows_per_block=THREADS * VECTORS_PER_THREAD)
    return Module(instructions="", text=_TEXT, kernels=(Kernel(name=name, params=params, launch=launch),))

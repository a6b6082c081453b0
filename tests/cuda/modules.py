"""Small hand-written modules the tests of this folder compile."""

from __future__ import annotations

from normgen.codegen.module import KernelEntry, Launch, Module, Param, Source

_INSTRUCTIONS = """\
__device__ __forceinline__ float __ldcs(const float* address) {
  float value;
  asm volatile("ld.global.cs.f32 %0, [%1];" : "=f"(value) : "l"(address));
  return value;
}
"""

_SCALE_TEXT = """\
extern "C" __global__ void __launch_bounds__(128) scale(
    float* __restrict__ y, const float* __restrict__ x, long long x_pitch, int rows, float factor) {
  __shared__ float row_copy[COLS];
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int col = threadIdx.x; col < COLS; col += blockDim.x)
      row_copy[col] = __ldcs(x + row * x_pitch + col);
    __syncthreads();
    for (int col = threadIdx.x; col < COLS; col += blockDim.x)
      y[(long long)row * COLS + col] = row_copy[col] * factor;
    __syncthreads();
  }
}
"""

# 96 values per thread stay live across the barrier; eight blocks of 256 threads leave 32 registers for them.
_SPILL_TEXT = """\
extern "C" __global__ void __launch_bounds__(256, BLOCKS) spill(float* y, const float* x, int stride) {
  __shared__ float factors[32];
  float values[96];
  #pragma unroll
  for (int i = 0; i < 96; ++i) values[i] = x[i * stride + threadIdx.x];
  factors[threadIdx.x % 32] = values[3];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 96; ++i) y[i * stride + threadIdx.x] = values[i] * values[(i * 37 + 5) % 96] * factors[i % 32];
}
"""

SCALE_PARAMS = (
    Param(name="y", ctype="float*", source=Source.TENSOR, key="y"),
    Param(name="x", ctype="const float*", source=Source.TENSOR, key="x"),
    Param(name="x_pitch", ctype="long long", source=Source.PITCH, key="x"),
    Param(name="rows", ctype="int", source=Source.ROWS),
    Param(name="factor", ctype="float", source=Source.SCALAR, key="eps"),
)


def scale(cols: int = 96) -> Module:
    """y = x * factor, one block per row through static shared memory of 4 * cols bytes."""
    return Module(
        instructions=_INSTRUCTIONS,
        text=_SCALE_TEXT.replace("COLS", str(cols)),
        kernels=(KernelEntry(name="scale", params=SCALE_PARAMS, launch=Launch(threads=128)),),
    )


def spill(blocks: int) -> Module:
    """A kernel with 96 live values; `blocks` per SM bound its registers to 65536 / 256 / blocks."""
    params = (
        Param(name="y", ctype="float*", source=Source.TENSOR, key="y"),
        Param(name="x", ctype="const float*", source=Source.TENSOR, key="x"),
        Param(name="stride", ctype="int", source=Source.COLS),
    )
    kernel = KernelEntry(name="spill", params=params, launch=Launch(threads=256))
    return Module(instructions="", text=_SPILL_TEXT.replace("BLOCKS", str(blocks)), kernels=(kernel,))


def broken(name: str = "broken") -> Module:
    """Uses a variable nobody declared."""
    text = f'extern "C" __global__ void {name}(float* y) {{ y[0] = undeclared_value; }}\n'
    params = (Param(name="y", ctype="float*", source=Source.TENSOR, key="y"),)
    return Module(
        instructions="", text=text, kernels=(KernelEntry(name=name, params=params, launch=Launch(threads=32)),)
    )


def two_kernels() -> Module:
    """Two entries of different needs in one module."""
    text = """\
extern "C" __global__ void first(float* y) { y[threadIdx.x] = 1.0f; }
extern "C" __global__ void second(float* y) {
  __shared__ float slots[256];
  slots[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = slots[255 - threadIdx.x];
}
"""
    params = (Param(name="y", ctype="float*", source=Source.TENSOR, key="y"),)
    names = ("first", "second")
    kernels = tuple(KernelEntry(name=name, params=params, launch=Launch(threads=256)) for name in names)
    return Module(instructions="", text=text, kernels=kernels)


def cooperative() -> Module:
    """Includes cooperative_groups, the only headers emitted text ever needs."""
    text = """\
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void warp_sum(float* y, const float* x) {
  auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  float total = cg::reduce(tile, x[threadIdx.x], cg::plus<float>());
  if (tile.thread_rank() == 0) y[threadIdx.x / 32] = total;
}
"""
    params = (
        Param(name="y", ctype="float*", source=Source.TENSOR, key="y"),
        Param(name="x", ctype="const float*", source=Source.TENSOR, key="x"),
    )
    kernel = KernelEntry(name="warp_sum", params=params, launch=Launch(threads=256))
    headers = ("cooperative_groups.h", "cooperative_groups/reduce.h")
    return Module(instructions="", text=text, kernels=(kernel,), headers=headers)

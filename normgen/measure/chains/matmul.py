"""The context `matmul`: P and C are matrix products of cuBLAS, [rows, cols] x [cols, cols], as in a model.

cuBLAS comes from an optional wheel and is called through ctypes; nothing of it is imported unless it is asked for.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from normgen.cuda.driver import OnDevice, check, driver
from normgen.cuda.memory import DeviceBuffer, copy
from normgen.cuda.stream import Stream
from normgen.errors import NormgenError
from normgen.measure.chains.ends import ConsumedRegion
from normgen.measure.replays import consumed, main_input
from normgen.problem.problem import Problem

WHEELS = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
HINT = "pip install 'normgen[matmul]', or nvidia-cublas (nvidia-cublas-cu12 with CUDA 12)"
WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends from Hopper on; a captured call must not allocate its own
LONGEST_US = 2000.0  # two matrix products that take longer hide what the kernel between them costs
MEMORY_SHARE = 0.5  # of the free memory that weights and products may take
RANDOM_WEIGHTS = 1_000_003  # numbers that the weights repeat: a prime, so that no two rows of them are alike
_TYPES = {"f32": 0, "f16": 2, "bf16": 14}  # cudaDataType: CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF
_COMPUTE_32F, _DEFAULT_ALGORITHM, _NO_TRANSPOSE = 68, -1, 0


@functools.cache
def library() -> ctypes.CDLL:
    """libcublas of an installed wheel. Raises NormgenError, which names the wheel, when there is none."""
    for wheel in WHEELS:
        try:
            files = metadata.distribution(wheel).files or ()
        except metadata.PackageNotFoundError:
            continue
        found = {
            Path(file.name).name.partition(".so")[0]: Path(str(file.locate())) for file in files if ".so" in file.name
        }
        if "libcublas" in found:
            try:
                if "libcublasLt" in found:
                    ctypes.CDLL(str(found["libcublasLt"]), mode=ctypes.RTLD_GLOBAL)
                return ctypes.CDLL(str(found["libcublas"]))
            except OSError as error:
                raise NormgenError(f"the wheel {wheel} must load", received=str(error), hint=HINT) from error
    raise NormgenError("the context matmul needs cuBLAS", received="no wheel of it is installed", hint=HINT)


def refusal(problem: Problem, *, free_bytes: int) -> str:
    """Why a problem does not stand between matrix products; empty where it does."""
    x, y = main_input(problem), next((t for t in consumed(problem) if t.kind.is_elem), None)
    if y is None:
        return "it has no [rows, cols] output that a matrix product could read"
    if problem.col_stride > 1:
        return "its rows lie side by side, and a matrix product would sum along another axis"
    if x.dtype.name not in _TYPES or y.dtype != x.dtype:
        return f"cuBLAS multiplies {', '.join(_TYPES)} by the same dtype: {x.name} is {x.dtype}, {y.name} {y.dtype}"
    needed = _bytes(problem)
    if needed > MEMORY_SHARE * free_bytes:
        return (
            f"weights [{problem.cols}, {problem.cols}] take {needed / 2**30:.1f} GiB of {free_bytes / 2**30:.1f} free"
        )
    return ""


def least_us(problem: Problem, *, gb_per_s: float) -> float:
    """What two products take on a GPU of such memory, at least: their weights and the product are read or written."""
    return _bytes(problem) / gb_per_s / 1e3


def too_long(us: float) -> str:
    """Why two products of so many µs are not compared with; empty where they are."""
    return f"two of this size take {us / 1e3:.1f} ms" if us > LONGEST_US else ""


def _bytes(problem: Problem) -> int:
    """Of both weights and of the product."""
    size = problem.dtype.bytes
    return 2 * problem.cols**2 * size + problem.rows * problem.pitch * size + WORKSPACE_BYTES


class Matmul:
    """P and C as matrix products in float32 arithmetic; f32 ones run without tensor cores."""

    def __init__(self, problem: Problem, index: int) -> None:
        """Raises NormgenError where cuBLAS or memory is missing, or the dtypes do not fit."""
        self._cublas, self._index = library(), index
        with OnDevice(index):
            free, _ = check(driver().cuMemGetInfo(), "tell its free memory")
        if why := refusal(problem, free_bytes=int(free)):
            raise NormgenError("the context matmul does not fit the problem", received=why, hint="--context between")
        self._rows, self._cols, self._pitch = problem.rows, problem.cols, problem.pitch
        self._dtype = main_input(problem).dtype
        self._weights = [_weights(problem, index, seed=seed) for seed in (1, 2)]
        self._product = DeviceBuffer(problem.rows * problem.pitch * self._dtype.bytes, device=index)
        self._workspace = DeviceBuffer(WORKSPACE_BYTES, device=index)
        self._handle = ctypes.c_void_p()
        with OnDevice(index):
            self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def produce(self, target: ConsumedRegion, source: ConsumedRegion, stream: Stream | int) -> None:
        self._multiply(source.pointer, self._pitch, self._weights[0], target.pointer, stream)

    def consume(self, regions: Sequence[ConsumedRegion], stream: Stream | int) -> None:
        """The product of the first region."""
        step = regions[0].bytes // self._rows // self._dtype.bytes  # the rows of another library's output are packed
        self._multiply(regions[0].pointer, max(step, self._cols), self._weights[1], self._product.pointer, stream)

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            with OnDevice(self._index):
                self._call("cublasDestroy_v2", handle)
        for held in (*self._weights, self._product, self._workspace):
            held.close()

    def _multiply(self, x: int, pitch: int, weights: DeviceBuffer, y: int, stream: Stream | int) -> None:
        """y = x @ weights, row by row: in cuBLAS' column order yᵀ = weightsᵀ xᵀ."""
        kind, cols = _TYPES[self._dtype.name], self._cols
        pointer = ctypes.c_void_p
        with OnDevice(self._index):
            self._call("cublasSetStream_v2", self._handle, pointer(int(stream)))
            # Setting a stream takes the workspace away.
            self._call("cublasSetWorkspace_v2", self._handle, pointer(self._workspace.pointer),
                       ctypes.c_size_t(WORKSPACE_BYTES))  # fmt: skip
            self._call(
                "cublasGemmEx", self._handle, _NO_TRANSPOSE, _NO_TRANSPOSE, cols, self._rows, cols,
                ctypes.byref(self._one), pointer(weights.pointer), kind, cols, pointer(x), kind, pitch,
                ctypes.byref(self._zero), pointer(y), kind, self._pitch, _COMPUTE_32F, _DEFAULT_ALGORITHM,
            )  # fmt: skip

    def _call(self, name: str, *arguments: Any) -> None:
        status = int(getattr(self._cublas, name)(*arguments))
        if status:
            raise NormgenError(f"cuBLAS must accept {name}", received=f"status {status}")


def _weights(problem: Problem, index: int, *, seed: int) -> DeviceBuffer:
    """[cols, cols] normal numbers of variance 1 / cols: a product has the variance of what it multiplies."""
    dtype, count = main_input(problem).dtype, problem.cols**2
    random = np.random.default_rng(seed).standard_normal(min(count, RANDOM_WEIGHTS), dtype=np.float32)
    some = (random / np.float32(math.sqrt(problem.cols))).astype(dtype.numpy)
    buffer = DeviceBuffer(count * dtype.bytes, device=index)
    buffer.write(some)
    filled = some.nbytes
    while filled < buffer.size:
        step = min(filled, buffer.size - filled)
        copy(buffer.pointer + filled, buffer.pointer, step, device=index)
        filled += step
    return buffer

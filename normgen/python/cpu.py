"""The CPU as a handle's device: the emitted text run over arrays in host memory, with every access checked."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from normgen.codegen.module import Module
from normgen.cpu import Program, build
from normgen.cuda.arrays import ON_CPU, ArrayView, extent_of, with_strides
from normgen.cuda.cubin import Cubin
from normgen.cuda.dlpack import contiguous_strides
from normgen.device import target
from normgen.dtypes import DType
from normgen.errors import FaultError, UsageError
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.spec.spec import Sizes

_ALIGNMENT = 256  # that of device memory
_TIME_LIMIT_S = 3600.0  # of one call: a loop without an end must not keep the process for ever


class Cpu:
    """The executor of host memory. A call is done when it returns: it has no streams, and waits for nobody."""

    index = ON_CPU
    sm_count = 4  # a persistent grid on so few makes its blocks loop even over few rows

    def __init__(self) -> None:
        self.facts = target("h200")
        self.use = nullcontext

    def bind(self, problem: Problem, module: Module, cubin: Cubin | None) -> BoundProgram:
        """The module's text, built by the host's compiler. Raises NoCompilerError, CompileError."""
        if cubin is not None:
            raise UsageError("a kernel on the CPU runs the module's text", received="a cubin", hint="leave `cubin` out")
        return BoundProgram(problem, build(module), self.sm_count)

    def current_stream(self, _array: Any) -> int:
        return 0

    def stream_handle(self, stream: Any) -> NoReturn:
        raise UsageError(
            "a kernel on the CPU has no streams: a call is done when it returns",
            received=f"stream={stream!r}",
            hint="leave `stream` out",
        )

    def new_like(
        self, _array: Any, shape: tuple[int, ...], dtype: DType, strides: tuple[int, ...] | None = None
    ) -> np.ndarray[Any, Any]:
        """A numpy array of NaN, which no kernel leaves in an output that it writes; of -1 in whole numbers."""
        steps = contiguous_strides(shape) if strides is None else strides
        memory = _bytes(extent_of(shape, steps) * dtype.bytes)
        memory.fill(0xFF)
        return with_strides(memory.view(dtype.numpy), shape, steps)

    def capture_on(self, _queue: int) -> None:
        return None

    def repeater(self, _problem: Problem, _out: str) -> None:
        return None

    def captured_workspace(self, _capture: Any, _size: int) -> NoReturn:
        raise AssertionError("nothing is captured on the CPU")

    def new_workspace(self, size: int, zeroed: int, _queue: int) -> HostMemory:
        """Zeros, then NaN bytes where a kernel finds nothing initialised."""
        made = _bytes(size)
        made[:zeroed], made[zeroed:] = 0, 0xFF
        return HostMemory(array=made)

    def wait_for_producers(self, _views: Mapping[str, ArrayView], _queue: int) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Bytes in host memory."""

    array: np.ndarray[Any, Any]

    @property
    def pointer(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def size(self) -> int:
        return int(self.array.size)


class BoundProgram:
    """One set of arguments of a built module: as `normgen.cuda.launch.BoundLaunch`, but a launch runs to its end.

    Each launch takes blocks and threads in another order, as a GPU may; the first in the order of their indices.
    """

    def __init__(self, problem: Problem, program: Program, sm_count: int) -> None:
        self._program, self._sm_count = program, sm_count
        self._tensors = {tensor.name: tensor for tensor in problem.passed_tensors}
        self._beside = problem.col_stride
        self._cols, self._inner, self._rows, self._workspace = problem.cols, problem.sizes.inner, 0, 0
        self._rows_per_batch, self._batches = 0, 1
        self._places: dict[str, tuple[int | None, int]] = {}
        self._scalars: dict[str, float] = {}
        self._seeds = itertools.count()

    def set(
        self,
        *,
        cols: int | None = None,
        inner: int | None = None,
        rows_per_batch: int | None = None,
        scalars: Mapping[str, float] | None = None,
        workspace: int | None = None,
    ) -> None:
        self._cols = self._cols if cols is None else cols
        self._inner = self._inner if inner is None else inner
        self._rows_per_batch = self._rows_per_batch if rows_per_batch is None else rows_per_batch
        self._workspace = self._workspace if workspace is None else workspace
        self._scalars.update(scalars or {})

    def set_tensor(self, key: str, pointer: int | None, pitch: int) -> None:
        self._places[key] = pointer, pitch

    def set_rows(self, rows: int, batches: int) -> None:
        self._rows, self._batches = rows, batches

    def launch(self, _stream: int) -> None:
        """Run all kernels. Raises FaultError with what they did wrong; what they wrote until then stays."""
        module = self._program.module
        lengths = {"cols": self._cols, "inner": self._inner, "rows_per_batch": self._rows_per_batch}
        scratch = module.workspace_bytes(rows=self._rows, sm_count=self._sm_count, batches=self._batches, **lengths)
        workspace = _over(self._workspace, (scratch,), 1, np.dtype(np.uint8)) if scratch else None
        run = self._program.run(
            {name: self._array(self._tensors[name], *place) for name, place in self._places.items()},
            rows=self._rows,
            cols=self._cols,
            inner=self._inner,
            rows_per_batch=self._rows_per_batch,
            batches=self._batches,
            scalars=self._scalars,
            seed=next(self._seeds),
            sm_count=self._sm_count,
            workspace=workspace,
            time_limit_s=_TIME_LIMIT_S,
        )
        if run.faults:
            if workspace is not None:
                workspace[: module.zeroed_bytes(self._batches)] = (
                    0  # what the kernel would have done, had it come to its end
                )
            raise FaultError("a kernel must keep to its tensors and to the rules of the GPU", faults=run.faults)

    def _array(self, tensor: TensorUse, pointer: int | None, pitch: int) -> np.ndarray[Any, Any] | None:
        """The caller's memory as the executor takes it: [rows, cols], [batches, cols], [rows] or [cols], sides."""
        if not pointer:  # not given, or of no rows
            return None
        shape = tensor.shape(Sizes(self._rows, self._cols, self._inner, self._batches))
        if tensor.kind.is_elem and self._beside > 1:
            shape = (self._rows // self._beside, self._cols * self._beside)
        return _over(pointer, shape or (1,), pitch, tensor.dtype.of_array.numpy)


def _bytes(size: int) -> np.ndarray[Any, Any]:
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def _over(pointer: int, shape: tuple[int, ...], pitch: int, dtype: Any) -> np.ndarray[Any, Any]:
    """An array over memory that somebody else keeps; rows `pitch` elements apart."""
    steps = (shape[-2] * pitch if len(shape) > 2 else 0, pitch, 1)[-len(shape) :]
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
    memory = (ctypes.c_char * (extent * dtype.itemsize)).from_address(pointer)
    return np.ndarray(shape, dtype, memory, strides=tuple(step * dtype.itemsize for step in steps))

"""What a handle needs of the device it runs on; `gpu.py` and `cpu.py` have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from normgen.codegen.module import Module
from normgen.cuda.arrays import ArrayView
from normgen.cuda.cubin import Cubin
from normgen.device import Device
from normgen.dtypes import DType
from normgen.errors import UsageError
from normgen.problem.problem import Problem
from normgen.python.cpu import Cpu
from normgen.python.gpu import Gpu
from normgen.python.repeat import Repeater


class Bound(Protocol):
    """A module's kernels with one set of arguments."""

    def set(
        self,
        *,
        cols: int | None = None,
        inner: int | None = None,
        rows_per_batch: int | None = None,
        scalars: Mapping[str, float] | None = None,
        workspace: int | None = None,
    ) -> object: ...

    def set_tensor(self, key: str, pointer: int | None, pitch: int, /) -> None: ...

    def set_rows(self, rows: int, batches: int, /) -> None: ...

    def launch(self, stream: int, /) -> None: ...


class Memory(Protocol):
    """Bytes of the device, freed with the last reference."""

    @property
    def pointer(self) -> int: ...

    @property
    def size(self) -> int: ...


class Executor(Protocol):
    """A device's memory, queues and launches.

    index     how views of arrays name the device
    facts     the GPU that schedules are made for
    sm_count  how many SMs a persistent grid is sized for
    use       inside it, the device is the current one of this thread
    """

    index: int
    facts: Device
    sm_count: int

    @property
    def use(self) -> Callable[[], AbstractContextManager[object]]: ...

    def bind(self, problem: Problem, module: Module, cubin: Cubin | None, /) -> Bound: ...

    def current_stream(self, array: Any, /) -> int: ...

    def stream_handle(self, stream: Any, /) -> int: ...

    def new_like(
        self, array: Any, shape: tuple[int, ...], dtype: DType, strides: tuple[int, ...] | None = None, /
    ) -> Any:
        """A new array, contiguous or of these strides in elements."""

    def new_workspace(self, size: int, zeroed: int, queue: int, /) -> Memory:
        """At least the first `zeroed` bytes are zeros for what is queued from now on."""

    def capture_on(self, queue: int, /) -> Any: ...

    def captured_workspace(self, capture: Any, size: int, /) -> Memory: ...

    def repeater(self, problem: Problem, out: str, /) -> Repeater | None:
        """What repeats known calls of a handle natively, where that is possible; `out`: its first output."""

    def wait_for_producers(self, views: Mapping[str, ArrayView], queue: int, /) -> None: ...


def executor_for(device: int | str) -> Executor:
    """That of a GPU by its number, or of "cpu". Raises NoDeviceError without that GPU, UsageError for other names."""
    if device == "cpu":
        return Cpu()
    if not isinstance(device, int):
        raise UsageError("a device is the number of a GPU, or 'cpu'", received=repr(device), hint="0 is the first GPU")
    return Gpu(device)

"""A device in host memory, for the device's side of a check: buffers are bytes, launches run on the CPU executor.

What is queued on the default stream happens as late as it may: when another stream waits for it, or memory is read.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from normgen.codegen.module import Module
from normgen.cpu import build
from normgen.problem.problem import Problem
from normgen.spec.spec import Sizes

SM_COUNT = 6
FAULTS: list[str] = []  # of all launches
_QUEUED: list[Callable[[], object]] = []  # on the default stream


_MADE: weakref.WeakSet[HostBuffer] = weakref.WeakSet()


def _done() -> None:
    """Do what is queued on the default stream."""
    while _QUEUED:
        _QUEUED.pop(0)()


def _filled(target: np.ndarray, value: Any) -> None:
    target[...] = value


class HostBuffer:
    def __init__(self, size: int, *, device: int = 0) -> None:
        self.size, self.device = size, device
        self.bytes = np.full(max(size, 1), 0xEE, dtype=np.uint8)
        self.pointer = self.bytes.ctypes.data
        _MADE.add(self)

    def write(self, data: np.ndarray, *, offset: int = 0) -> None:
        _done()
        self.bytes[offset : offset + data.nbytes] = data.view(np.uint8)

    def read(self, shape: tuple[int, ...], dtype: Any, *, offset: int = 0) -> np.ndarray:
        _done()
        plain = np.dtype(getattr(dtype, "numpy", dtype))
        found = self.bytes[offset : offset + int(np.prod(shape)) * plain.itemsize].copy().view(plain)
        return found.reshape(shape)

    def copy_from(self, other: HostBuffer, *, stream: HostStream | int = 0) -> None:
        if stream:
            self.bytes[...] = other.bytes
        else:
            _QUEUED.append(lambda: _filled(self.bytes, other.bytes))

    def fill(self, value: int) -> None:
        _QUEUED.append(lambda: _filled(self.bytes, value))

    def close(self) -> None:
        _done()
        self.bytes[...] = 0xEE


def host_memset(pointer: int, value: int, size: int, **_: Any) -> None:
    owner = [b for b in _MADE if b.pointer <= pointer < b.pointer + b.bytes.size]  # lives until its memory is written
    _QUEUED.append(lambda: owner and ctypes.memset(pointer, value, size))


class HostStream:
    def wait_for(self, other: int) -> None:
        assert other == 0
        _done()

    def synchronize(self) -> None: ...


class HostModule:
    """A loaded module: `cubin` is the problem, which says what lies behind a pointer."""

    def __init__(self, module: Module, cubin: Problem, **_: Any) -> None:
        self.module, self.cubin = module, cubin

    def bind(self) -> HostBound:
        return HostBound(self)

    def close(self) -> None: ...


class HostBound:
    def __init__(self, loaded: HostModule) -> None:
        self.loaded = loaded
        self.values: dict[str, Any] = {}

    def set(self, **values: Any) -> HostBound:
        self.values |= {name: value for name, value in values.items() if value is not None}
        return self

    def launch(self, _: HostStream) -> None:
        v, module = self.values, self.loaded.module
        rows, cols = v["rows"], v["cols"]
        tensors = {}
        for tensor in self.loaded.cubin.passed_tensors:
            pointer, item = v["pointers"][tensor.name], tensor.dtype.bytes
            shape = tensor.kind.shape(Sizes(rows, cols))
            step = v["pitches"][tensor.name] * item if tensor.kind.is_elem else item
            strides = (step, item) if tensor.kind.is_elem else (item,)
            if pointer is None:
                tensors[tensor.name] = None
                continue
            memory = (ctypes.c_uint8 * max(1, shape[0] * step)).from_address(pointer)
            tensors[tensor.name] = np.ndarray(shape, tensor.dtype.numpy, memory, 0, strides)
        size = module.workspace_bytes(rows=rows, sm_count=SM_COUNT)
        workspace = None
        if size:
            workspace = np.frombuffer((ctypes.c_uint8 * size).from_address(v["workspace"]), dtype=np.uint8)
        run = build(module).run(
            tensors, rows=rows, cols=cols, scalars=v["scalars"], sm_count=SM_COUNT, workspace=workspace
        )
        FAULTS.extend(map(str, run.faults))  # what the executor refused to write stays as it was

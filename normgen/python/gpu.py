"""A GPU as a handle's device: arrays of the caller's library, its streams, and captured graphs.

Nothing is imported that is not in use.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from normgen.codegen.module import Module
from normgen.cuda.arrays import ArrayView, DeviceArray, extent_of, is_torch
from normgen.cuda.cache import CubinCache
from normgen.cuda.captured import capture_on, workspace_of
from normgen.cuda.compiler import compile_module
from normgen.cuda.cubin import Cubin
from normgen.cuda.driver import OnDevice, check, context_of, device_facts, driver
from normgen.cuda.launch import BoundLaunch, interned
from normgen.cuda.memory import DeviceBuffer
from normgen.cuda.stream import stream_handle, wait_for_stream
from normgen.dtypes import BF16, DType
from normgen.problem.problem import Problem
from normgen.python.repeat import Repeater, repeater

_DEFAULT_STREAM = 1  # how arrays name stream 0


class Gpu:
    """The executor of one GPU. What a call needs is bound here once, to cost no more than a look-up."""

    stream_handle = staticmethod(stream_handle)
    capture_on = staticmethod(capture_on)

    def __init__(self, index: int) -> None:
        self.index, self.facts = index, device_facts(index)
        self.sm_count = self.facts.sm_count
        self.use = partial(OnDevice, index)
        self.captured_workspace = partial(workspace_of, device=index)

    def bind(self, _problem: Problem, module: Module, cubin: Cubin | None) -> BoundLaunch:
        """The module's kernels, loaded; compiled first if they are not."""
        compiled = cubin or compile_module(module, self.facts.arch, cache=CubinCache())
        return interned(module, compiled, device=self.index).bind()

    def current_stream(self, array: Any) -> int:
        """The stream the array's library queues its work on; 0 (the default stream) for the rest."""
        if is_torch(array) and "torch" in sys.modules:
            torch = sys.modules["torch"]
            raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # what is behind the next line, in a tenth of it
            return int(raw(self.index) if raw else torch.cuda.current_stream(self.index).cuda_stream)
        if _is_cupy(array):
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
        return 0

    def new_like(self, array: Any, shape: tuple[int, ...], dtype: DType, strides: tuple[int, ...] | None = None) -> Any:
        """An uninitialised array: a torch tensor for torch, a cupy array for cupy, else a DeviceArray."""
        extent = shape if strides is None else extent_of(shape, strides)
        if is_torch(array) and "torch" in sys.modules:
            made = array.new_empty(extent, dtype=getattr(sys.modules["torch"], dtype.torch))
            return made if strides is None else made.as_strided(shape, strides)
        if _is_cupy(array) and dtype is not BF16:  # cupy has no bfloat16 arrays
            cupy = sys.modules["cupy"]
            with cupy.cuda.Device(self.index):
                made = cupy.empty(extent, dtype=dtype.numpy)
                steps = None if strides is None else tuple(step * dtype.bytes for step in strides)
                return made if steps is None else cupy.lib.stride_tricks.as_strided(made, shape, steps)
        return DeviceArray(shape, dtype, strides=strides, device=self.index)

    def new_workspace(self, size: int, _zeroed: int, queue: int) -> DeviceBuffer:
        """Zeros, in the order of the stream."""
        found = DeviceBuffer(size, device=self.index)
        found.fill(0, stream=queue)
        return found

    def repeater(self, problem: Problem, out: str) -> Repeater | None:
        return repeater(problem, out=out, context=context_of(self.index), refused=_refused)

    def wait_for_producers(self, views: Mapping[str, ArrayView], queue: int) -> None:
        for facts in views.values():
            if facts.ready_stream is not None and facts.ready_stream != (queue or _DEFAULT_STREAM):
                wait_for_stream(queue, facts.ready_stream, device=self.index)


def _refused(code: int, kernel: int) -> None:
    check((driver().CUresult(code),), f"launch kernel {kernel} of a known call")


def _is_cupy(array: Any) -> bool:
    return type(array).__module__.split(".", 1)[0] == "cupy" and "cupy" in sys.modules

"""Where a cell's kernel runs: on a GPU, or as its text on the CPU executor."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from normgen.codegen.module import Module
from normgen.cpu import build
from normgen.cuda.cache import CubinCache
from normgen.cuda.compiler import compile_module
from normgen.cuda.driver import OnDevice, device_facts
from normgen.cuda.launch import interned
from normgen.cuda.memory import DeviceBuffer
from normgen.cuda.stream import Stream
from normgen.device import Device
from normgen.device import target as named_target
from normgen.errors import FaultError
from normgen.verify import Inputs, make_outputs

Arrays = dict[str, NDArray[Any]]
CPU_SMS = 4  # a persistent grid on so few makes its blocks loop even over few rows
CPU_LIMIT_S = 3600.0


class KernelRunner(Protocol):
    """Runs kernels; `facts`: the GPU that schedules are made for; `index`: its number, None on the CPU."""

    @property
    def facts(self) -> Device: ...

    @property
    def index(self) -> int | None: ...

    def run(self, module: Module, inputs: Inputs) -> Arrays:
        """The written tensors of one call."""


class OnCpu:
    """The emitted text, every access checked."""

    index = None

    def __init__(self, target: str = "h200") -> None:
        self.facts = named_target(target)

    def run(self, module: Module, inputs: Inputs) -> Arrays:
        """Raises FaultError for a fault that the executor knows."""
        problem, outputs = inputs.problem, make_outputs(inputs.problem)
        run = build(module).run(
            {**inputs.arrays, **outputs.arrays},
            rows=problem.rows,
            cols=problem.cols,
            inner=problem.sizes.inner,
            rows_per_batch=problem.rows_per_batch,
            scalars=inputs.scalars,
            sm_count=CPU_SMS,
            time_limit_s=CPU_LIMIT_S,
        )
        if run.faults:
            raise FaultError("a kernel whose errors are measured runs without a fault", faults=run.faults)
        return outputs.arrays


class OnGpu:
    """The kernel itself, compiled if it is not in the cache."""

    def __init__(self, index: int) -> None:
        self.index, self.facts = index, device_facts(index)

    def run(self, module: Module, inputs: Inputs) -> Arrays:
        problem = inputs.problem
        memory = {name: DeviceBuffer.of(array, device=self.index) for name, array in inputs.arrays.items()}
        written = {t.name: t for t in problem.tensors if t.is_written}
        shapes = {name: problem.shape_of(t) or (1,) for name, t in written.items()}
        for name, tensor in written.items():
            memory[name] = DeviceBuffer(int(np.prod(shapes[name])) * tensor.dtype.bytes, device=self.index)
        sms, batches = self.facts.sm_count, problem.batches
        size = module.workspace_bytes(rows=problem.rows, sm_count=sms, batches=batches, **problem.lengths)
        workspace = DeviceBuffer(size, device=self.index)
        stream = Stream(self.index)
        for buffer in (workspace, *(memory[name] for name in written)):
            buffer.fill(0 if buffer is workspace else 0xFF, stream=stream)
        cubin = compile_module(module, self.facts.arch, cache=CubinCache())
        with OnDevice(self.index):
            bound = interned(module, cubin, device=self.index).bind()
            bound.set(
                pointers={name: buffer.pointer for name, buffer in memory.items()},
                pitches=problem.pitches,
                rows=problem.rows,
                cols=problem.cols,
                inner=problem.sizes.inner,
                rows_per_batch=problem.rows_per_batch,
                scalars=inputs.scalars,
                workspace=workspace.pointer,
            )
            bound.launch(stream)
            stream.synchronize()
        return {name: memory[name].read(shapes[name], tensor.dtype) for name, tensor in written.items()}

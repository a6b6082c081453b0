"""Two executors with one face: build modules, then run each on the buffers of a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from normgen.codegen.module import Module
from normgen.device import Device
from normgen.verify import Buffer, Inputs, Outputs
from tests.codegen.layouts import DEVICE

MISPLACED = 64  # device buffers start at the host's address modulo this: alignment is part of a problem


class Built(Protocol):
    """A module ready to run."""

    module: Module

    def run(self, inputs: Inputs, outputs: Outputs, *, workspace: np.ndarray | None = None, seed: int = 0) -> str:
        """Run once, in place; `workspace` is read and written back. The faults found, or ""."""
        ...


class Executor(Protocol):
    def build(self, modules: Sequence[Module]) -> Sequence[Built]: ...


def new_workspace(module: Module, rows: int, batches: int = 1) -> np.ndarray | None:
    """As the caller of a kernel prepares it: zeros, then bytes that nobody initialised."""
    size = module.workspace_bytes(rows=rows, sm_count=DEVICE.sm_count, batches=batches)
    workspace = np.full(size, 0xFF, dtype=np.uint8)
    workspace[: module.zeroed_bytes(batches)] = 0
    return workspace if size else None


@dataclass(frozen=True, kw_only=True)
class BuiltForCpu:
    module: Module
    program: Any

    def run(self, inputs: Inputs, outputs: Outputs, *, workspace: np.ndarray | None = None, seed: int = 0) -> str:
        run = self.program.run(
            {**inputs.arrays, **outputs.arrays},
            rows=inputs.problem.rows,
            cols=inputs.problem.cols,
            rows_per_batch=inputs.problem.rows_per_batch,
            scalars=inputs.scalars,
            seed=seed,
            sm_count=DEVICE.sm_count,
            workspace=workspace,
        )
        return "\n".join(map(str, run.faults))


class CpuExecutor:
    """The emitted text built by the host compiler; every access is checked."""

    def build(self, modules: Sequence[Module]) -> Sequence[Built]:
        from normgen.cpu import build_many

        programs = build_many(modules, workers=1)
        return [BuiltForCpu(module=m, program=p) for m, p in zip(modules, programs, strict=True)]


@dataclass(frozen=True, kw_only=True)
class BuiltForGpu:
    module: Module
    loaded: Any
    device: int

    def run(self, inputs: Inputs, outputs: Outputs, *, workspace: np.ndarray | None = None, seed: int = 0) -> str:
        from normgen.cuda.driver import OnDevice
        from normgen.cuda.memory import DeviceBuffer
        from normgen.cuda.stream import Stream

        _ = seed  # the hardware picks the order of blocks
        problem = inputs.problem
        buffers = {**inputs.buffers, **outputs.buffers}
        placed = {name: _upload(buffer, self.device) for name, buffer in buffers.items()}
        if workspace is None:  # a call of its own has memory of its own
            workspace = new_workspace(self.module, problem.rows, problem.batches)
        scratch = None if workspace is None else DeviceBuffer.of(workspace, device=self.device)
        stream = Stream(self.device)
        with OnDevice(self.device):
            bound = self.loaded.bind().set(
                pointers={n: memory.pointer + start + buffers[n].offset for n, (memory, start) in placed.items()},
                pitches=problem.pitches,
                rows=problem.rows,
                cols=problem.cols,
                rows_per_batch=problem.rows_per_batch,
                scalars=inputs.scalars,
                workspace=scratch.pointer if scratch else None,
            )
            bound.launch(stream)
            stream.synchronize()
        for name in outputs.buffers:
            memory, start = placed[name]
            storage = buffers[name].storage
            storage[...] = memory.read(storage.shape, storage.dtype, offset=start)
        if scratch and workspace is not None:
            workspace[...] = scratch.read(workspace.shape, workspace.dtype)
        return ""


def _upload(host: Buffer, device: int) -> tuple[Any, int]:
    """Device memory with the host's bytes at the same address modulo MISPLACED, and where they start in it."""
    from normgen.cuda.memory import DeviceBuffer

    memory = DeviceBuffer(host.storage.nbytes + MISPLACED, device=device)
    start = (host.storage.ctypes.data - memory.pointer) % MISPLACED
    memory.write(host.storage, offset=start)
    return memory, start


class GpuExecutor:
    """The same modules through NVRTC on a device, in the grid that two SMs would get, so that row loops loop."""

    def __init__(self, device: int = 0) -> None:
        from normgen.cuda.driver import device_facts, use_device

        use_device(device)
        self.device = device
        self.facts: Device = device_facts(device)

    def build(self, modules: Sequence[Module]) -> Sequence[Built]:
        from normgen.cuda.launch import LoadedModule
        from tests.cuda.compiled import compile_many

        small = [_on_two_sms(module) for module in modules]
        built = []
        for module, outcome in zip(small, compile_many(small, self.facts.arch), strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            loaded = LoadedModule(module, outcome, device=self.device)
            built.append(BuiltForGpu(module=module, loaded=loaded, device=self.device))
        return built


def _on_two_sms(module: Module) -> Module:
    """The module with the grid of its persistent kernels fixed at what DEVICE launches for many rows."""
    kernels = []
    for kernel in module.kernels:
        launch = kernel.launch
        if launch.persistent:
            launch = replace(launch, persistent=0, blocks=launch.grid(rows=1 << 30, sm_count=DEVICE.sm_count))
        kernels.append(replace(kernel, launch=launch))
    return replace(module, kernels=tuple(kernels))

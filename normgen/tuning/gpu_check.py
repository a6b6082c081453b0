"""One run of a kernel on adversarial rows, on the device, compared with the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass, replace

from normgen import verify
from normgen.codegen.module import Module
from normgen.cuda.compiler import compile_module
from normgen.cuda.runtime import Bound, DeviceBuffer, LoadedModule, Stream
from normgen.device import Device
from normgen.problem import Problem
from normgen.spec import Kind
from normgen.verify import Buffer, Verdict

CHECKED_ELEMENTS = 1 << 18  # of every candidate
CHECKED_ELEMENTS_FULL = 1 << 22  # of every finalist: some 0.5 s of float64 on the host
VERIFY_ELEMENTS = 1 << 25  # a larger problem is checked with fewer rows than it has


def checked_problem(problem: Problem, elements: int = VERIFY_ELEMENTS) -> Problem:
    """The problem with at most so many elements; the rows are independent and their number a run-time argument."""
    return replace(problem, rows=min(problem.rows, max(1, elements // problem.cols)))


@dataclass(kw_only=True)
class _Mirror:
    """A host buffer with its guard bytes, and the device memory that holds the same."""

    host: Buffer
    device: DeviceBuffer
    shift: int  # where the host's bytes start in the device buffer

    @property
    def pointer(self) -> int:
        return self.device.pointer + self.shift + self.host.offset

    def upload(self) -> None:
        self.device.write(self.host.storage, offset=self.shift)

    def download(self) -> None:
        self.host.storage[...] = self.device.read(self.host.storage.shape, self.host.storage.dtype, offset=self.shift)


def _mirror(host: Buffer, align: int, index: int) -> _Mirror:
    """Device memory in which the elements start at the same address modulo 2 x align as on the host."""
    modulus = 2 * align
    device = DeviceBuffer(host.storage.nbytes + modulus, device=index)
    shift = (host.array.ctypes.data - device.pointer - host.offset) % modulus
    mirror = _Mirror(host=host, device=device, shift=shift)
    mirror.upload()
    return mirror


class DeviceCheck:
    """Inputs and poisoned outputs of a problem on a device, ready for any number of kernels."""

    def __init__(self, problem: Problem, *, index: int, seed: int, elements: int = VERIFY_ELEMENTS) -> None:
        self.problem = checked_problem(problem, elements)
        self._inputs = verify.make_inputs(self.problem, seed=seed)
        self._outputs = verify.make_outputs(self.problem, seed=seed)
        self._poison = {name: b.storage.copy() for name, b in self._outputs.buffers.items()}
        buffers = {**self._inputs.buffers, **self._outputs.buffers}
        of = {t.name: t for t in self.problem.tensors}
        self._mirrors = {n: _mirror(b, max(problem.align, of[n].dtype.bytes), index) for n, b in buffers.items()}

    def run(self, bound: Bound, stream: Stream, *, full: bool) -> Verdict:
        """Launch once on poisoned outputs; every guard byte is looked at, and as many rows as pay."""
        for name, poison in self._poison.items():
            self._mirrors[name].host.storage[...] = poison
            self._mirrors[name].upload()
        bound.set(
            pointers={name: mirror.pointer for name, mirror in self._mirrors.items()},
            pitches={t.name: self.problem.pitch for t in self.problem.tensors if t.kind is Kind.ELEM},
            rows=self.problem.rows,
            cols=self.problem.cols,
            scalars=self._inputs.scalars,
        )
        bound.launch(stream)
        stream.synchronize()
        for name in self._poison:
            self._mirrors[name].download()
        elements = CHECKED_ELEMENTS_FULL if full else CHECKED_ELEMENTS
        rows = max(1, elements // self.problem.cols)
        return verify.check(self.problem, self._inputs, self._outputs, rows=rows)


def check_on_gpu(problem: Problem, module: Module, facts: Device, *, index: int, seed: int) -> Verdict:
    """Compile, load and check one kernel on GPU `index`, as thoroughly as a finalist of the tuner."""
    loaded = LoadedModule(module, compile_module(module, facts.arch), device=index)
    checks = DeviceCheck(problem, index=index, seed=seed)
    stream = Stream(index)
    workspace = DeviceBuffer(module.workspace_bytes(rows=problem.rows, sm_count=facts.sm_count), device=index)
    workspace.fill(0)
    stream.wait_for(0)
    return checks.run(loaded.bind().set(workspace=workspace.pointer), stream, full=True)

"""One run of a kernel on adversarial rows, on the device, compared with the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from normgen import verify
from normgen.codegen.module import Module
from normgen.cuda.compiler import compile_module
from normgen.cuda.launch import Bound, LoadedModule
from normgen.cuda.memory import DeviceBuffer
from normgen.cuda.stream import Stream
from normgen.device import Device
from normgen.problem.problem import Problem
from normgen.verify import FAMILY_ROWS, Buffer, Expectation, Verdict

CHECKED_ELEMENTS = 1 << 17  # of every candidate
CHECKED_ELEMENTS_FULL = 1 << 22  # of every finalist: some 0.5 s of float64 on the host, once for all of them
VERIFY_ELEMENTS = 1 << 24  # a larger problem is checked with fewer rows than it has


def checked_problem(problem: Problem, elements: int = VERIFY_ELEMENTS) -> Problem:
    """The problem with a number of rows that pays: at most so many elements, and enough for every row family.

    The rows are independent and their number is a run-time argument of the kernel.
    """
    most = max(1, elements // problem.cols)
    return replace(problem, rows=max(min(problem.rows, most), FAMILY_ROWS))


@dataclass(kw_only=True)
class _Mirror:
    """A host buffer with its guard bytes, and the device memory that holds the same."""

    host: Buffer
    device: DeviceBuffer
    shift: int  # where the host's bytes start in the device buffer
    fresh: DeviceBuffer | None = None  # the device buffer as it was before any kernel ran

    @property
    def pointer(self) -> int:
        return self.device.pointer + self.shift + self.host.offset

    def upload(self) -> None:
        self.device.write(self.host.storage, offset=self.shift)

    def keep(self) -> None:
        """Remember what the device buffer holds, for `restore`."""
        self.fresh = DeviceBuffer(self.device.size, device=self.device.device)
        self.fresh.copy_from(self.device)

    def restore(self, stream: Stream) -> None:
        """What it held before, from device memory: 25 MB from the host would take longer than the check."""
        assert self.fresh is not None
        self.device.copy_from(self.fresh, stream=stream)

    def download(self, rows: NDArray[np.intp] | None = None) -> None:
        """All bytes, or those of these rows (neighbours in one copy) and the guard bytes before and behind all rows."""
        whole = self.host.storage.nbytes
        array, offset = self.host.array, self.host.offset
        if rows is None or array.ndim == 1 or array.strides[0] != array.shape[1] * array.itemsize:
            self._read(0, whole)  # padded rows have guard bytes everywhere
            return
        step = array.strides[0]
        self._read(0, offset)
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            self._read(offset + int(run[0]) * step, offset + (int(run[-1]) + 1) * step)
        self._read(offset + len(array) * step, whole)

    def _read(self, start: int, stop: int) -> None:
        taken = self.device.read((stop - start,), np.uint8, offset=self.shift + start)
        self.host.storage[start:stop] = taken


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
        buffers = {**self._inputs.buffers, **self._outputs.buffers}
        of = {t.name: t for t in self.problem.tensors}
        self._mirrors = {n: _mirror(b, max(problem.align, of[n].dtype.bytes), index) for n, b in buffers.items()}
        for name in self._outputs.buffers:
            self._mirrors[name].keep()
        self._expected: dict[tuple[bool, int | None], Expectation] = {}

    def run(self, bound: Bound, stream: Stream, *, full: bool, chain: int | None = None) -> Verdict:
        """Launch once on poisoned outputs, then look at every guard byte and as many rows as pay.

        `chain` as in `verify.check`.
        """
        expected = self._expectation(full, chain)
        for name in self._outputs.buffers:
            self._mirrors[name].restore(stream)
        bound.set(
            pointers={name: mirror.pointer for name, mirror in self._mirrors.items()},
            pitches={t.name: self.problem.pitch for t in self.problem.tensors if t.kind.is_elem},
            rows=self.problem.rows,
            cols=self.problem.cols,
            scalars=self._inputs.scalars,
        )
        bound.launch(stream)
        stream.synchronize()
        for name in self._outputs.buffers:
            self._mirrors[name].download(None if full else expected.rows)
        return expected.check(self._outputs)

    def _expectation(self, full: bool, chain: int | None) -> Expectation:
        """Reference values and bounds, computed the first time they are asked for."""
        if (full, chain) not in self._expected:
            families, seed = self._inputs.families, self._inputs.seed
            elements = CHECKED_ELEMENTS_FULL if full else CHECKED_ELEMENTS
            count = max(FAMILY_ROWS, elements // self.problem.cols)
            rows = verify.pick_rows(families, count, seed=seed) if full else verify.pick_slabs(families, count)
            start = self._outputs.start
            self._expected[full, chain] = verify.prepare(
                self.problem, self._inputs, start=start, rows=rows, chain=chain
            )
        return self._expected[full, chain]


def check_on_gpu(problem: Problem, module: Module, facts: Device, *, index: int, seed: int) -> Verdict:
    """Compile, load and check one kernel on GPU `index`, as thoroughly as a finalist of the tuner."""
    loaded = LoadedModule(module, compile_module(module, facts.arch), device=index)
    checks = DeviceCheck(problem, index=index, seed=seed)
    stream = Stream(index)
    rows = checks.problem.rows
    workspace = DeviceBuffer(module.workspace_bytes(rows=rows, sm_count=facts.sm_count), device=index)
    workspace.fill(0)
    stream.wait_for(0)
    return checks.run(loaded.bind().set(workspace=workspace.pointer), stream, full=True)

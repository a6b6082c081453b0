"""Calls of a kernel on adversarial rows, on the device, compared with the float64 reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from normgen import verify
from normgen.codegen.module import Module
from normgen.cuda.compiler import compile_module
from normgen.cuda.driver import driver_version
from normgen.cuda.launch import BoundLaunch, LoadedModule
from normgen.cuda.memory import DeviceBuffer, memset
from normgen.cuda.stream import Stream
from normgen.device import Device
from normgen.errors import DriverError
from normgen.measure.calls import MOST_ELEMENTS, CheckedCalls, KernelCall, calls, few_beside, taken, together
from normgen.measure.host_memory import require_memory
from normgen.problem.problem import Problem
from normgen.records.verified import GPU, VerifiedOn
from normgen.verify import Buffer, Effects, Expectation, Outputs, Verdict, effects, family_rows, pick_rows, pick_slabs

CHECKED_ELEMENTS = 1 << 17  # of every candidate
SHARED_ELEMENTS = 1 << 18  # of a call that is kept for the next finalist, with its device memory
CHECKED_ELEMENTS_FULL = 1 << 22  # of a full check: some 0.5 s of float64 on the host
VERIFY_ELEMENTS = 1 << 24  # a larger problem is checked with fewer rows than it has


def checked_problem(problem: Problem, elements: int = VERIFY_ELEMENTS) -> Problem:
    """The problem with a number of rows that pays: at most so many elements, and enough for every row family.

    The rows are independent and their number is a run-time argument of the kernel.
    """
    problem = few_beside(problem)
    most = max(1, elements // problem.cols)
    return problem.with_rows(max(min(problem.rows, most), family_rows(problem)))


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


class _Setting:
    """Inputs and poisoned outputs of one call, on a device."""

    def __init__(self, call: KernelCall, *, index: int, seed: int) -> None:
        self.call = call
        self.inputs, self.outputs = call.tensors(seed=seed)
        problem = call.problem
        of = {t.name: t for t in problem.tensors}
        buffers = self._buffers = call.memory(self.inputs, self.outputs)
        self._mirrors = {n: _mirror(b, max(problem.align, of[n].dtype.bytes), index) for n, b in buffers.items()}

    def keep(self) -> None:
        """Remember the poisoned outputs, for `restore`."""
        for name in self.outputs.buffers:
            self._mirrors[name].keep()

    def restore(self, stream: Stream) -> None:
        for name in self.outputs.buffers:
            self._mirrors[name].restore(stream)

    def launch(self, bound: BoundLaunch, stream: Stream) -> None:
        """Run the kernel once and wait for it."""
        call, problem, launched = self.call, self.call.problem, self.call.far_rows.launched
        bound.set(
            pointers={**{n: m.pointer for n, m in self._mirrors.items()}, **dict.fromkeys(call.nulls)},
            pitches={**problem.pitches, **call.pitches},
            rows=launched.rows,
            cols=problem.cols,
            inner=problem.sizes.inner,
            rows_per_batch=launched.sharing_rows,
            scalars=self.inputs.scalars,
        )
        bound.launch(stream)
        stream.synchronize()

    def download(self, rows: NDArray[np.intp] | None = None) -> Outputs:
        """The outputs: all bytes, or, where rows are lines of memory, those of these rows and the guard bytes."""
        problem = self.call.problem
        lines = {t.name for t in problem.tensors if t.kind.by_row} - set(dict(problem.layout))
        lines -= {t.name for t in problem.elem_tensors if problem.col_stride > 1}
        for name in self.outputs.buffers:
            self._mirrors[name].download(rows if name in lines else None)
        self.call.gather(self._buffers, self.outputs)
        return self.outputs


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A call with all that its verdict needs beside a kernel."""

    setting: _Setting
    expected: Expectation
    effects: Effects


class DeviceCheck:
    """Inputs and poisoned outputs of a problem on a device, ready for any number of kernels."""

    def __init__(self, problem: Problem, facts: Device, *, index: int, seed: int, elements: int = VERIFY_ELEMENTS):
        self.problem = checked_problem(problem, elements)
        self._facts, self._index, self._seed = facts, index, seed
        self.plain = KernelCall(says="", problem=self.problem, sm_count=facts.sm_count)
        self._setting = _Setting(self.plain, index=index, seed=seed)
        self._setting.keep()
        version = ".".join(map(str, driver_version()))
        self.site = VerifiedOn(executor=GPU, device=facts.name, version=version)
        self._expected: dict[tuple[bool, int | None], Expectation] = {}
        self._effects: Effects | None = None
        self._shared: dict[tuple[str, int], _Prepared] = {}

    def run(self, bound: BoundLaunch, stream: Stream, *, full: bool, chain: int | None = None) -> Verdict:
        """Launch once on poisoned outputs, then look at every guard byte and as many rows as pay.

        `chain` as in `verify.check`.
        """
        expected = self._expectation(full, chain)
        self._setting.restore(stream)
        self._setting.launch(bound, stream)
        return expected.check(self._setting.download(None if full else expected.rows))

    def run_all(
        self, loaded: LoadedModule, bound: BoundLaunch, stream: Stream, *, scalars: Mapping[str, float] | None = None
    ) -> CheckedCalls:
        """The plain call in full, then the others up to the first that is wrong; one more at these `scalars`.

        Left out: another order of threads, which the device picks, and rows 2^31 elements apart, 9 GB a tensor.
        Raises DriverError, which names the call, for a kernel that faults.
        """

        def made() -> Iterator[tuple[KernelCall, Verdict | str | None]]:
            found, verdict = self._plain_effects(), self.run(bound, stream, full=True)
            yield self.plain, replace(verdict, seen=found.seen, unseen=found.unseen)
            for call in calls(self.problem, loaded.module, sm_count=self._facts.sm_count, scalars=scalars):
                if call.order or call.is_far:
                    continue
                is_short = call.elements_on_gpu(CHECKED_ELEMENTS) <= MOST_ELEMENTS
                try:
                    yield call, self._other(call, loaded, stream) if is_short else None
                except DriverError as error:
                    raise DriverError(error.rule, code=error.code, received=call.title) from error

        return together(made(), self.site)

    def _plain_effects(self) -> Effects:
        """Which variations of the plain call change an element: the same for every kernel."""
        if self._effects is None:
            self._effects = effects(self._expectation(True, None), self._setting.outputs.start)
        return self._effects

    def _other(self, call: KernelCall, loaded: LoadedModule, stream: Stream) -> Verdict | str:
        """One call in its own memory: its verdict, or what is wrong with the workspace."""
        module = call.on_its_grid(loaded.module)
        prepared = self._prepared(call, module)
        launched = call.far_rows.launched
        fixed = module.zeroed_bytes(launched.batches)
        counts = {"rows": launched.rows, "sm_count": call.sm_count, "batches": launched.batches}
        size = module.workspace_bytes(**counts, **call.problem.lengths)
        workspace = DeviceBuffer(max(size, 1), device=self._index)
        workspace.fill(0xFF)
        if fixed:
            memset(workspace.pointer, 0, fixed, device=self._index)
        stream.wait_for(0)  # what is kept, filled and written is so on the default stream
        prepared.setting.restore(stream)
        own = LoadedModule(module, loaded.cubin, device=self._index)
        try:
            prepared.setting.launch(own.bind().set(workspace=workspace.pointer), stream)
            if fixed and workspace.read((fixed,), "uint8").any():
                return "the workspace is left unfit for the next call"
            outputs = prepared.setting.download()
        finally:
            own.close()
            workspace.close()
        verdict = prepared.expected.check(outputs)
        return replace(verdict, call=call.title, seen=prepared.effects.seen, unseen=prepared.effects.unseen)

    def _prepared(self, call: KernelCall, module: Module) -> _Prepared:
        """Inputs, reference and effects of a call, once for all kernels that have it.

        Of calls with every family of rows the bound is that of any schedule, as in the plain call.
        """
        is_same_length = call.problem.cols == self.problem.cols and call.families is not None
        chain = module.chain if is_same_length else 0
        if (known := self._shared.get((call.title, chain))) is not None and known.setting.call == call:
            return known
        setting = _Setting(call, index=self._index, seed=self._seed)
        setting.keep()
        expected = call.expected(setting.inputs, setting.outputs, elements=CHECKED_ELEMENTS, chain=chain or None)
        found = effects(expected, setting.outputs.start)
        prepared = _Prepared(setting=setting, expected=expected, effects=found)
        if call.families is None or (call.elements <= SHARED_ELEMENTS and not call.gap):
            self._shared[call.title, chain] = prepared
        return prepared

    def _expectation(self, full: bool, chain: int | None) -> Expectation:
        """Reference values and bounds, computed the first time they are asked for."""
        if (full, chain) not in self._expected:
            inputs = self._setting.inputs
            elements = CHECKED_ELEMENTS_FULL if full else CHECKED_ELEMENTS
            count = max(family_rows(self.problem), elements // self.problem.cols)
            rows = pick_rows(inputs.families, count, seed=inputs.seed) if full else pick_slabs(inputs.families, count)
            start = self._setting.outputs.start
            self._expected[full, chain] = verify.prepare(self.problem, inputs, start=start, rows=rows, chain=chain)
        return self._expected[full, chain]


def check_on_gpu(
    problem: Problem,
    module: Module,
    facts: Device,
    *,
    index: int,
    seed: int,
    scalars: Mapping[str, float] | None = None,
) -> CheckedCalls:
    """Compile, load and check one kernel on GPU `index`, as thoroughly as a finalist of the tuner."""
    require_memory(checked_problem(problem))
    loaded = LoadedModule(module, compile_module(module, facts.arch), device=index)
    checks = DeviceCheck(taken(problem, module), facts, index=index, seed=seed)
    stream = Stream(index)
    rows, batches = checks.problem.rows, checks.problem.batches
    size = module.workspace_bytes(rows=rows, sm_count=facts.sm_count, batches=batches, **checks.problem.lengths)
    workspace = DeviceBuffer(size, device=index)
    workspace.fill(0)
    stream.wait_for(0)
    return checks.run_all(loaded, loaded.bind().set(workspace=workspace.pointer), stream, scalars=scalars)

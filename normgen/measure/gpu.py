"""The bench on a real GPU: checks against the reference, replays of captured graphs over rotating buffers."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgen.codegen.module import Module
from normgen.cuda.driver import pci_bus_id, use_device
from normgen.cuda.launch import LoadedModule
from normgen.cuda.memory import DeviceBuffer, copy, memset
from normgen.cuda.stream import Event, Graph, Stream
from normgen.device import Device
from normgen.errors import DriverError, NormgenError
from normgen.measure.calls import taken, together
from normgen.measure.chains import matmul
from normgen.measure.chains.chain import Chain, chain_of
from normgen.measure.chains.ends import Loaded
from normgen.measure.chains.kernels import VECTOR_BYTES, module_of
from normgen.measure.chains.works import Work, works_of
from normgen.measure.check import VERIFY_ELEMENTS, DeviceCheck
from normgen.measure.clocks import ClockWatch
from normgen.measure.data import fill, filled_sets, sample_inputs, zeros
from normgen.measure.faults import DeviceLostError, KernelFaultError
from normgen.measure.protocol import BASE, BASE_AGAIN, ROOF_PREFIX, Check, twin_name, twins_of
from normgen.measure.replays import REPLAY_US, ROUND_OVER_L2, layout, main_input, plan_of
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.source import kernel_problem
from normgen.records.place import Context, Place
from normgen.records.verified import Outcome

WARM_UP_S = 0.003
HOPELESS = 20  # times the best so far: a kernel that takes longer is not worth its replays
HOPELESS_FLOOR_US = 200.0  # three launches from the host are no fair measure of less
GUARD_BYTES = 4096  # before and behind a workspace
GUARD = 0xA5
COPY = ROOF_PREFIX + "copy"
WARM_LINKS = 3  # run before a chain is captured: libraries set themselves up in their first calls
# After these the context is gone for good (CUDA driver API, CUresult).
_FATAL = (
    *("ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "MISALIGNED_ADDRESS", "ILLEGAL_INSTRUCTION"),
    *("HARDWARE_STACK_ERROR", "INVALID_ADDRESS_SPACE", "INVALID_PC", "ASSERT"),
)


@dataclass(kw_only=True)
class _Loaded:
    module: LoadedModule
    workspace: DeviceBuffer | None  # with its guard bytes on both sides

    @property
    def workspace_pointer(self) -> int | None:
        return self.workspace.pointer + GUARD_BYTES if self.workspace is not None else None

    def overran(self) -> bool:
        """Whether a byte next to the workspace was written."""
        if self.workspace is None:
            return False
        ends = (0, self.workspace.size - GUARD_BYTES)
        return any(bool((self.workspace.read((GUARD_BYTES,), "uint8", offset=at) != GUARD).any()) for at in ends)


@dataclass(kw_only=True)
class _Replay:
    """A graph of `launches` launches, or links of a chain; `flush` empties the L2 before it where the plan says so."""

    graph: Graph
    launches: int
    flush: Callable[[], None] | None


class GpuBench:
    """A `protocol.Bench` on device `index`. Everything runs on one stream of its own.

    A replay is a graph of links [P][K][C] of the chain that the place asks for; alone, of launches of K.
    """

    def __init__(
        self,
        problem: Problem,
        facts: Device,
        *,
        index: int,
        place: Place,
        seed: int,
        checked_elements: int = VERIFY_ELEMENTS,
        replay_us: float = REPLAY_US,
    ) -> None:
        use_device(index)
        self.problem, self.place = problem, place
        self._index, self._facts = index, facts
        self._stream = Stream(index)
        self._start, self._stop = Event(index), Event(index)
        self._layout = layout(problem, place)
        self.plan = plan_of(
            self._layout.kernel_bytes,
            self._layout.bytes,
            l2_bytes=facts.l2_bytes,
            place=place,
            replay_us=replay_us,
        )
        self.inputs = sample_inputs(problem, seed=seed)  # of every set, repeated over its rows
        self._sets = filled_sets(self.inputs, problem, self._layout, count=self.plan.sets, index=index)
        self._scalars = {name: float(value) for name, value in problem.spec.scalars}
        self._make_check = functools.partial(
            DeviceCheck, facts=facts, index=index, seed=seed, elements=checked_elements
        )
        self._checks: dict[Problem, DeviceCheck] = {}
        self._checks_of(kernel_problem(problem))
        self._loaded: dict[str, _Loaded] = {}
        self._replays: dict[str, _Replay] = {}
        self._chains: dict[Context, Chain] = {}
        self._links: dict[Context, int] = {}  # of a replay: as many for every contender as for the chain without one
        self._reader: Loaded | None = None
        self._flusher: Callable[[], None] | None = self._make_flusher() if self.plan.flushed else None
        self._best_us: float | None = None
        self._watch = ClockWatch.of_device(pci_bus_id(index))
        self.bases: Sequence[str] = ()
        if place.context is not Context.ALONE:
            self._replays[BASE] = self._replays[BASE_AGAIN] = self._base(place.context)
            self.bases = (BASE, BASE_AGAIN)
        self._works = works_of(problem, self._layout, self._sets, facts, index)
        self.roofs: Sequence[str] = tuple(ROOF_PREFIX + name for name in self._works.works)
        for name, work in self._works.works.items():
            self._replays[ROOF_PREFIX + name] = self._replay(work, place.context)

    def load(self, key: str, module: Module, cubin: Any) -> None:
        """Load a cubin; its workspace is zeroed once, here, between guard bytes."""
        problem = self.problem
        problem = problem.with_rows(max(problem.rows, self._checks_of(taken(problem, module)).problem.rows))
        sms, batches = self._facts.sm_count, problem.batches
        size = module.workspace_bytes(rows=problem.rows, sm_count=sms, batches=batches, **problem.lengths)
        with _watching():
            loaded = LoadedModule(module, cubin, device=self._index)
            workspace = _guarded(size, self._index) if size else None
            self._stream.wait_for(0)
        self._loaded[key] = _Loaded(module=loaded, workspace=workspace)

    def check(self, key: str, *, full: bool) -> Check:
        """One call on the adversarial rows, compared with the float64 reference, or in full all of `calls`.

        Every guard byte is looked at.
        """
        loaded = self._loaded[key]
        with _watching():
            bound = self._bind(loaded)
            checks = self._checks_of(taken(self.problem, loaded.module.module))
            if full:
                checked = checks.run_all(loaded.module, bound, self._stream)
            else:
                checked = together([(checks.plain, checks.run(bound, self._stream, full=False))], checks.site)
            overran = loaded.overran()
        if overran:
            return Check(ok=False, summary="bytes next to the workspace were written", error=checked.error)
        return Check(ok=checked.ok, summary=checked.summary, error=checked.error, verified=checked.verified)

    def unload(self, key: str) -> None:
        """Free the kernel's graphs, its twins' among them, module and workspace."""
        for own in (key, *twins_of(key)):
            replay = self._replays.pop(own, None)
            if replay is not None:
                replay.graph.close()
        loaded = self._loaded.pop(key, None)
        if loaded is None:
            return
        loaded.module.close()
        if loaded.workspace is not None:
            loaded.workspace.close()

    def tensors(self, number: int) -> dict[str, int]:
        """Where each tensor's first element lies in set `number`."""
        base = self._sets[number].pointer
        return {name: base + offset for name, offset in self._layout.offsets.items()}

    def restore(self) -> None:
        """Set 0 with its own inputs: a matrix product in front of a kernel writes others, a kernel in place does."""
        for tensor in self.problem.tensors:
            if tensor.under and self.problem.rows:
                fill(self._sets[0], self._layout.offsets[tensor.name], tensor, self.inputs, self.problem)
        main, base = self._layout.slots[main_input(self.problem).name], self._sets[0].pointer
        if self.place.context is not Context.ALONE:
            source = base + self._layout.source.start
            copy(base + main.start, source, main.bytes, stream=self._stream, device=self._index)
        self._stream.synchronize()

    def launch_once(self, key: str) -> None:
        """Run a loaded kernel on set 0 and wait for it."""
        with _watching():
            self.restore()
            self._work(self._loaded[key])(0, self._stream)
            self._stream.synchronize()

    def read(self, tensor: TensorUse, rows: tuple[int, int], number: int = 0) -> np.ndarray[Any, Any]:
        """Rows start..stop of a tensor of set `number`: elem [rows, cols], row [rows], groups by row; others whole."""
        start, stop = rows
        size, offset = tensor.dtype.bytes, self._layout.offsets[tensor.name]
        shape, pitch = self.problem.shape_of(tensor), self.problem.pitch_of(tensor)
        if len(shape) > 1 and not (tensor.group or tensor.axes[:1] == ("rows",)):
            lines = self._sets[number].read((math.prod(shape[:-1]), pitch), tensor.dtype, offset=offset)
            return np.asarray(lines[:, : shape[-1]].reshape(shape))
        if not tensor.kind.by_row:
            return self._sets[number].read(shape, tensor.dtype, offset=offset)
        if tensor.group:  # few values, which one row may have anywhere
            found = self._sets[number].read((shape[0], pitch), tensor.dtype, offset=offset)
            return np.asarray(tensor.layout.by_row(found[:, : shape[-1]])[start:stop])
        if tensor.kind.is_elem and self.problem.col_stride > 1:
            beside, cols = self.problem.col_stride, self.problem.cols
            lines = self._sets[number].read((shape[0] // beside, pitch), tensor.dtype, offset=offset)
            apart = lines[:, : cols * beside].reshape(-1, cols, beside).swapaxes(1, 2)
            return np.ascontiguousarray(apart).reshape(shape)[start:stop]
        width = pitch if len(shape) > 1 else 1
        found = self._sets[number].read((stop - start, width), tensor.dtype, offset=offset + start * width * size)
        return tensor.dtype.by_element(found[:, : shape[-1]]) if len(shape) > 1 else found[:, 0]

    def close(self) -> None:
        """Free everything this bench holds on the device, without waiting for the garbage collector."""
        for key in [*self._replays, *self._loaded]:
            self.unload(key)
        for buffer in (*self._sets, *([self._scratch] if self._reader is not None else [])):
            buffer.close()
        if self._reader is not None:
            self._reader.close()
        self._works.close()
        for chain in self._chains.values():
            chain.close()
        for end in (self._start, self._stop, self._stream):
            end.close()
        self._sets, self._chains = [], {}
        del self._checks

    def warm_up(self, key: str) -> None:
        """Replay for 3 ms; the first time this also captures the graph."""
        if key not in self._replays:
            with _watching():
                self._replays[key] = self._capture(key, self.place.context)
        end = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < end:
            self.sample(key)

    def links(self, key: str) -> int:
        """Links of a replay of a key that was warmed up."""
        return self._replays[key].launches

    def sample(self, key: str) -> float:
        """µs a link of one replay, alone a launch."""
        replay = self._replays[key]
        if replay.flush is not None:
            replay.flush()
        with _watching():
            return replay.graph.replay_us(self._stream, self._start, self._stop) / replay.launches

    def twin(self, key: str, context: Context | None = None) -> str:
        """The same loaded cubin, captured again; or in another context, where also the chain without a kernel."""
        again = twin_name(key, context)
        with _watching():
            if key == BASE:
                assert context is not None, "the chain without a kernel is there twice"
                self._replays[again] = self._base(context)
            else:
                self._replays[again] = self._capture(key, context or self.place.context)
        return again

    def expect(self, best_us: float) -> None:
        """Kernels loaded from now on are given up when a launch takes HOPELESS times as long."""
        self._best_us = best_us

    def disturbance(self) -> str:
        """Why the device did not run at full speed since the last call, if it did not."""
        return self._watch.disturbance()

    def conditions(self) -> Mapping[str, Any]:
        """What the clock did; and of a hot chain that does not stay in the L2, that it does not."""
        mebibytes = self._layout.bytes / 2**20
        spills = {"spills": f"a chain takes {mebibytes:.0f} MiB and does not stay in L2"} if self.plan.spills else {}
        return {**self._watch.summary(), **spills}

    def _checks_of(self, problem: Problem) -> DeviceCheck:
        """What kernels are checked with that take this problem's tensors."""
        if problem not in self._checks:
            self._checks[problem] = self._make_check(problem)
            self._stream.wait_for(0)  # the data was prepared on the default stream
        return self._checks[problem]

    def _bind(self, loaded: _Loaded) -> Any:
        return loaded.module.bind().set(workspace=loaded.workspace_pointer)

    def _capture(self, key: str, context: Context) -> _Replay:
        """A graph of as many launches as the plan says.

        Raises KernelFaultError when the kernel is hopelessly slow.
        """
        work = self._work(self._loaded[key])
        self._refuse_hopeless(key, self._rough_us(work))
        return self._replay(work, context)

    def _refuse_hopeless(self, key: str, rough_us: float) -> None:
        if self._best_us is not None and rough_us > max(HOPELESS_FLOOR_US, HOPELESS * self._best_us):
            raise KernelFaultError(
                f"a launch may take {HOPELESS} times the best so far, {self._best_us:.1f} µs",
                key=key,
                outcome=Outcome.TIMEOUT,
                received=f"{rough_us:.0f} µs",
            )

    def _work(self, loaded: _Loaded) -> Work:
        """Queues launch i, which uses set i % sets."""
        bound = self._bind(loaded).set(
            pitches=self.problem.pitches,
            rows=self.problem.rows,
            cols=self.problem.cols,
            inner=self.problem.sizes.inner,
            rows_per_batch=self.problem.sharing_rows,
            scalars=self._scalars,
        )

        def launch(i: int, stream: Stream) -> None:
            bound.set(pointers=self.tensors(i % self.plan.sets))
            bound.launch(stream)

        return launch

    def chain(self, context: Context) -> Chain:
        """The chain of a context other than `alone`. Raises NormgenError where the device or the problem has none.

        Matrix products that nobody asked for, and that hide a kernel, are not made: of 1x97600 bf16 each has 19 GB of
        weights, and takes longer to make than an answer may.
        """
        assert self.place.context is not Context.ALONE, "the sets of a bench that times alone hold nothing for P"
        if context not in self._chains:
            if context is Context.MATMUL and self.place.context is not context:
                us = matmul.least_us(self.problem, gb_per_s=self._facts.dram_gb_per_s)
                if why := matmul.too_long(us):
                    raise NormgenError("matrix products show what a kernel costs", received=why)
            chain = chain_of(context, self.problem, self._layout, self._sets, self._facts, self._index)
            self._stream.wait_for(0)  # what a chain allocates was filled on the default stream
            self._chains[context] = chain
        return self._chains[context]

    def _base(self, context: Context) -> _Replay:
        """The chain without a kernel: its time says how many links a replay of the context has."""
        chain = self.chain(context)
        replay = self._sized(self._capturing(chain.without), self._rough_us(chain.without))
        self._links[context] = replay.launches
        return replay

    def _replay(self, work: Work, context: Context) -> _Replay:
        if context is Context.ALONE:
            return self._sized(self._capturing(work), self._rough_us(work))
        chain = self.chain(context)

        def link(i: int, stream: Stream) -> None:
            chain.before(i, stream)
            work(i, stream)
            chain.behind(i, stream)

        self._run(link, WARM_LINKS)
        return self._captured(self._capturing(link), self._links[context])

    def _sized(self, capture: Callable[[int], Graph], rough_us: float) -> _Replay:
        """Captured twice when the first, sized by separate launches from the host, turns out too short."""
        first = self._captured(capture, self.plan.launches(rough_us))
        count = self._recount(first)
        if count <= 1.5 * first.launches:
            return first
        first.graph.close()
        return self._captured(capture, count)

    def _recount(self, replay: _Replay) -> int:
        """Launches that the plan asks for, now that a graph of them has been replayed."""
        replay.graph.replay_us(self._stream, self._start, self._stop)
        return self.plan.launches(replay.graph.replay_us(self._stream, self._start, self._stop) / replay.launches)

    def _capturing(self, link: Work) -> Callable[[int], Graph]:
        """Captures a number of links."""

        def links(count: int) -> None:
            for i in range(count):
                link(i, self._stream)

        return lambda count: Graph.capture(self._stream, lambda: links(count))

    def _captured(self, capture: Callable[[int], Graph], count: int) -> _Replay:
        graph = capture(count)
        graph.upload(self._stream)
        return _Replay(graph=graph, launches=count, flush=self._flusher)

    def _run(self, link: Work, count: int) -> None:
        for i in range(count):
            link(i, self._stream)
        self._stream.synchronize()

    def _rough_us(self, link: Work) -> float:
        """A first idea of the time of a launch, from three in a row: good enough to size a graph."""
        self._run(link, 1)
        self._start.record(self._stream)
        for i in range(3):
            link(i, self._stream)
        self._stop.record(self._stream)
        self._stop.synchronize()
        return self._stop.since_us(self._start) / 3

    def _make_flusher(self) -> Callable[[], None]:
        """Reads 3 x L2 of memory that nothing else uses."""
        size = ROUND_OVER_L2 * self._facts.l2_bytes // VECTOR_BYTES * VECTOR_BYTES
        self._scratch = zeros(size + VECTOR_BYTES, self._index)
        base = self._scratch.pointer
        self._reader = Loaded(module_of("read_elements"), self._facts, self._index)
        reader = self._reader.bound.set(rows=size // VECTOR_BYTES, pointers={"target": base + size, "source": base})
        return lambda: reader.launch(self._stream)


def _guarded(size: int, index: int) -> DeviceBuffer:
    """`size` zeroed bytes between two runs of guard bytes."""
    buffer = DeviceBuffer(size + 2 * GUARD_BYTES, device=index)
    buffer.fill(GUARD)
    memset(buffer.pointer + GUARD_BYTES, 0, size, device=index)
    return buffer


@contextlib.contextmanager
def _watching() -> Iterator[None]:
    """Turns a fault that ends the context into DeviceLostError: nothing can be measured after it."""
    try:
        yield
    except DriverError as error:
        if any(name in error.code for name in _FATAL):
            raise DeviceLostError("a kernel ended the device's context", received=error.received) from error
        raise

"""The bench on a real GPU: checks against the reference, replays of captured graphs over rotating buffers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgen.codegen.module import Module
from normgen.cuda.compiler import compile_module
from normgen.cuda.driver import core_device, use_device
from normgen.cuda.launch import LoadedModule
from normgen.cuda.memory import DeviceBuffer, copy, memset
from normgen.cuda.stream import Event, Graph, Stream
from normgen.device import Device
from normgen.errors import DriverError
from normgen.measure.calls import together
from normgen.measure.check import VERIFY_ELEMENTS, DeviceCheck
from normgen.measure.clocks import Watch
from normgen.measure.data import filled_sets, sample_inputs, zeros
from normgen.measure.protocol import ROOF_PREFIX, Check, DeviceLostError, KernelFaultError
from normgen.measure.replays import REPLAY_US, ROUND_OVER_L2, Plan, layout, plan_of
from normgen.measure.roof import VECTOR_BYTES, roof_module
from normgen.problem.problem import Problem, TensorUse
from normgen.records.record import Cache, Outcome

WARM_UP_S = 0.003
HOPELESS = 20  # times the best so far: a kernel that takes longer is not worth its replays
HOPELESS_FLOOR_US = 200.0  # three launches from the host are no fair measure of less
GUARD_BYTES = 4096  # before and behind a workspace
GUARD = 0xA5
COPY, ELEMENTWISE = ROOF_PREFIX + "copy", ROOF_PREFIX + "elementwise"
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
    """A graph of `launches` launches; `flush` empties the L2 before it where the plan says so."""

    graph: Graph
    launches: int
    flush: Callable[[], None] | None


class GpuBench:
    """A `campaign.Bench` on device `index`. Everything runs on one stream of its own."""

    roofs: Sequence[str] = (COPY, ELEMENTWISE)

    def __init__(
        self,
        problem: Problem,
        facts: Device,
        *,
        index: int,
        cache: Cache,
        seed: int,
        checked_elements: int = VERIFY_ELEMENTS,
        replay_us: float = REPLAY_US,
    ) -> None:
        use_device(index)
        self.problem = problem
        self._index, self._facts = index, facts
        self._stream = Stream(index)
        self._start, self._stop = Event(index), Event(index)
        self._offsets, set_bytes = layout(problem)
        self.plan = plan_of(set_bytes, l2_bytes=facts.l2_bytes, cache=cache, replay_us=replay_us)
        self.inputs = sample_inputs(problem, seed=seed)  # of every set, repeated over its rows
        self._sets = filled_sets(self.inputs, problem, self._offsets, set_bytes, count=self.plan.sets, index=index)
        self._scalars = {name: float(value) for name, value in problem.spec.scalars}
        self._checks = DeviceCheck(problem, facts, index=index, seed=seed, elements=checked_elements)
        self._stream.wait_for(0)  # the data was prepared on the default stream
        self._loaded: dict[str, _Loaded] = {}
        self._replays: dict[str, _Replay] = {}
        self._helpers: list[LoadedModule] = []
        self._flusher: Callable[[], None] | None = None
        self._best_us: float | None = None
        self._watch = Watch.of_device(str(core_device(index).pci_bus_id))
        self._roof_sets: list[DeviceBuffer] = []
        self._make_roofs(cache)

    def load(self, key: str, module: Module, cubin: Any) -> None:
        """Load a cubin; its workspace is zeroed once, here, between guard bytes."""
        rows = max(self.problem.rows, self._checks.problem.rows)
        size = module.workspace_bytes(rows=rows, sm_count=self._facts.sm_count)
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
            if full:
                checked = self._checks.run_all(loaded.module, bound, self._stream)
            else:
                plain = self._checks.run(bound, self._stream, full=False)
                checked = together([(self._checks.plain, plain)])
            overran = loaded.overran()
        if overran:
            return Check(ok=False, summary="bytes next to the workspace were written", error=checked.error)
        return Check(ok=checked.ok, summary=checked.summary, error=checked.error, not_shown=checked.not_shown)

    def unload(self, key: str) -> None:
        """Free the kernel's graph, module and workspace."""
        replay = self._replays.pop(key, None)
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
        return {name: base + offset for name, offset in self._offsets.items()}

    def launch_once(self, key: str) -> None:
        """Run a loaded kernel on set 0 and wait for it."""
        with _watching():
            self._launcher(self._loaded[key])(0)
            self._stream.synchronize()

    def read(self, tensor: TensorUse, rows: tuple[int, int]) -> np.ndarray[Any, Any]:
        """Rows start..stop of a tensor of set 0: elem [rows, cols], row [rows]; col [cols] whole."""
        start, stop = rows
        size, pitch, cols = tensor.dtype.bytes, self.problem.pitch, self.problem.cols
        offset = self._offsets[tensor.name]
        if not tensor.kind.by_row:
            return self._sets[0].read((cols,), tensor.dtype, offset=offset)
        width = pitch if tensor.kind.is_elem else 1
        found = self._sets[0].read((stop - start, width), tensor.dtype, offset=offset + start * width * size)
        return found[:, :cols] if tensor.kind.is_elem else found[:, 0]

    def close(self) -> None:
        """Free everything this bench holds on the device, without waiting for the garbage collector."""
        for key in [*self._replays, *self._loaded]:
            self.unload(key)
        for helper in self._helpers:
            helper.close()
        buffers = [*self._sets, *self._roof_sets, *([self._scratch] if self._flusher else [])]
        for held in (*buffers, self._start, self._stop, self._stream):
            held.close()
        self._sets, self._roof_sets = [], []
        del self._checks

    def warm_up(self, key: str) -> None:
        """Replay for 3 ms; the first time this also captures the graph."""
        if key not in self._replays:
            with _watching():
                self._replays[key] = self._capture(key)
        end = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < end:
            self.sample(key)

    def sample(self, key: str) -> float:
        """µs a launch of one replay."""
        replay = self._replays[key]
        if replay.flush is not None:
            replay.flush()
        with _watching():
            return replay.graph.replay_us(self._stream, self._start, self._stop) / replay.launches

    def twin(self, key: str) -> str:
        """The same loaded cubin, captured again."""
        again = f"{key} again"
        with _watching():
            self._replays[again] = self._capture(key)
        return again

    def expect(self, best_us: float) -> None:
        """Kernels loaded from now on are given up when a launch takes HOPELESS times as long."""
        self._best_us = best_us

    def disturbance(self) -> str:
        """Why the device did not run at full speed since the last call, if it did not."""
        return self._watch.disturbance()

    def conditions(self) -> Mapping[str, Any]:
        return self._watch.summary()

    def _bind(self, loaded: _Loaded) -> Any:
        return loaded.module.bind().set(workspace=loaded.workspace_pointer)

    def _capture(self, key: str) -> _Replay:
        """A graph of as many launches as the plan says for this kernel's time.

        Raises KernelFaultError when the kernel is hopelessly slow.
        """
        launch = self._launcher(self._loaded[key])
        rough_us = self._rough_us(launch)
        if self._best_us is not None and rough_us > max(HOPELESS_FLOOR_US, HOPELESS * self._best_us):
            raise KernelFaultError(
                f"a launch may take {HOPELESS} times the best so far, {self._best_us:.1f} µs",
                key=key,
                outcome=Outcome.TIMEOUT,
                received=f"{rough_us:.0f} µs",
            )
        return self._replay(launch, self.plan, rough_us)

    def _launcher(self, loaded: _Loaded) -> Callable[[int], None]:
        """Queues launch i, which uses set i % sets."""
        bound = self._bind(loaded).set(
            pitches={t.name: self.problem.pitch for t in self.problem.tensors if t.kind.is_elem},
            rows=self.problem.rows,
            cols=self.problem.cols,
            scalars=self._scalars,
        )

        def launch(i: int) -> None:
            bound.set(pointers=self.tensors(i % self.plan.sets))
            bound.launch(self._stream)

        return launch

    def _replay(self, launch: Callable[[int], None], plan: Plan, rough_us: float) -> _Replay:
        def capture(count: int) -> Graph:
            return Graph.capture(self._stream, lambda: list(map(launch, range(count))))

        return self._sized(capture, plan, rough_us)

    def _sized(self, capture: Callable[[int], Graph], plan: Plan, rough_us: float) -> _Replay:
        """Captured twice when the first, sized by separate launches from the host, turns out too short."""
        first = self._captured(capture, plan, plan.launches(rough_us))
        first.graph.replay_us(self._stream, self._start, self._stop)
        us = first.graph.replay_us(self._stream, self._start, self._stop) / first.launches
        count = plan.launches(us)
        if count <= 1.5 * first.launches:
            return first
        first.graph.close()
        return self._captured(capture, plan, count)

    def _captured(self, capture: Callable[[int], Graph], plan: Plan, count: int) -> _Replay:
        graph = capture(count)
        graph.upload(self._stream)
        return _Replay(graph=graph, launches=count, flush=self._flusher if plan.flushed else None)

    def _rough_us(self, launch: Callable[[int], None]) -> float:
        """A first idea of the time of a launch, from three in a row: good enough to size a graph."""
        launch(0)
        self._start.record(self._stream)
        for i in range(3):
            launch(i)
        self._stop.record(self._stream)
        self._stop.synchronize()
        return self._stop.since_us(self._start) / 3

    def _make_roofs(self, cache: Cache) -> None:
        """Both copies of half the problem's bytes to the other half, on their own sets."""
        half = -(-max(self.problem.compulsory_bytes // 2, 1) // VECTOR_BYTES) * VECTOR_BYTES
        plan = plan_of(2 * half, l2_bytes=self._facts.l2_bytes, cache=cache, replay_us=self.plan.replay_us)
        if plan.flushed or self.plan.flushed:
            self._flusher = self._make_flusher()
        self._roof_sets = [self._roof_set(i, half) for i in range(plan.sets)]
        self._stream.wait_for(0)
        copier = self._helper("copy_elements").set(rows=half // VECTOR_BYTES)

        def by_node(i: int) -> None:
            base = self._roof_sets[i % plan.sets].pointer
            copy(base, base + half, half, stream=self._stream, device=self._index)

        def by_kernel(i: int) -> None:
            base = self._roof_sets[i % plan.sets].pointer
            copier.set(pointers={"target": base, "source": base + half})
            copier.launch(self._stream)

        self._replays[COPY] = self._replay(by_node, plan, self._rough_us(by_node))
        self._replays[ELEMENTWISE] = self._replay(by_kernel, plan, self._rough_us(by_kernel))

    def _roof_set(self, i: int, half: int) -> DeviceBuffer:
        """Source and target of one copy; the source repeats a set's first input: zeros copy faster than data."""
        buffer = zeros(2 * half, self._index)
        first = next(t for t in self.problem.tensors if not t.is_written)
        start = self._sets[i % self.plan.sets].pointer + self._offsets[first.name]
        size = max(1, self.problem.rows * self.problem.pitch * first.dtype.bytes)
        for position in range(0, half, size):
            copy(buffer.pointer + position, start, min(size, half - position), stream=self._stream, device=self._index)
        self._stream.synchronize()
        return buffer

    def _make_flusher(self) -> Callable[[], None]:
        """Reads 3 x L2 of memory that nothing else uses."""
        size = ROUND_OVER_L2 * self._facts.l2_bytes // VECTOR_BYTES * VECTOR_BYTES
        self._scratch = zeros(size + VECTOR_BYTES, self._index)
        base = self._scratch.pointer
        reader = self._helper("read_elements").set(
            rows=size // VECTOR_BYTES, pointers={"target": base + size, "source": base}
        )
        return lambda: reader.launch(self._stream)

    def _helper(self, name: str) -> Any:
        """A bound kernel of `tuning.roof`, compiled here."""
        module = roof_module(name)
        loaded = LoadedModule(module, compile_module(module, self._facts.arch), device=self._index)
        self._helpers.append(loaded)
        return loaded.bind()


def get_ready(index: int) -> None:
    """Create the device's context, which takes longest: a worker does it before it knows its problem."""
    use_device(index)


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

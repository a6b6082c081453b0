"""`normgen calibrate`: the cost model's latencies and rates of one GPU, by microbenchmarks of some seconds in all.

Each figure is a slope: a kernel that does a thing n times is timed for two n, and the difference divided by the
difference in n, so that launch and start-up cancel. Latencies chase pointers through a ring of lines in an order
without pattern; bandwidths are an elementwise copy of a size that does not fit L2, and one that does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from normgen.codegen.module import KernelEntry, Launch, Module, Param, Source
from normgen.cost.constants import Constants
from normgen.cuda.compiler import compile_module
from normgen.cuda.driver import device_facts, use_device
from normgen.cuda.launch import LoadedModule
from normgen.cuda.memory import DeviceBuffer
from normgen.cuda.stream import Event, Graph, Stream
from normgen.device import Device
from normgen.measure.chains.kernels import text_of
from normgen.measure.chains.roofs import Streams, elementwise_roofs

LINE = 128
REPLAYS = 9
SHORT, LONG = 2_000, 12_000  # repetitions of a short thing
DRAM_RING = 256 << 20
L2_RING = 8 << 20
L1_RING = 16 << 10
COPY_MIB = (1, 4, 16, 64, 256, 1024)
SMALLEST_SHARE = 0.1  # a slope below this share of its start is noise: the old constant stays

_PARAMS = (
    Param(name="out", ctype="unsigned*", source=Source.TENSOR, key="out"),
    Param(name="in", ctype="const unsigned*", source=Source.TENSOR, key="in"),
    Param(name="count", ctype="int", source=Source.ROWS),
)


def probe_module(name: str, *, threads: int = 32, cluster: int = 1) -> Module:
    """The module of one probe: `rows` of the launch is how often it does its thing, on one block or cluster."""
    text = text_of("normgen.studies", "cluster_probe.cu" if cluster > 1 else "probes.cu")
    launch = Launch(threads=threads, cluster=cluster, blocks=cluster)
    return Module(
        instructions="", text=text, kernels=(KernelEntry(name=name, params=_PARAMS, launch=launch),),
        min_arch=90 if cluster > 1 else 75,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measured constants and the bandwidths they rest on: GB/s of a copy, by MiB moved."""

    constants: Constants
    copy_gb_per_s: dict[int, float]
    measured_us: dict[str, float]


def ring(size: int, *, seed: int = 0) -> np.ndarray:
    """A cycle through all lines of `size` bytes in random order, as the index of the next line's first word."""
    lines = size // LINE
    order = np.random.default_rng(seed).permutation(lines).astype(np.uint32)
    words = np.zeros((lines, LINE // 4), dtype=np.uint32)
    words[order, 0] = np.roll(order, -1) * (LINE // 4)
    return words.reshape(-1)


def slope_us(timed: Callable[[int], float], short: int = SHORT, long: int = LONG) -> float:
    """µs of one repetition: the difference of two counts, launch and start-up cancelled."""
    return (timed(long) - timed(short)) / (long - short)


class _Probes:
    """Loads and times the probes on one device."""

    def __init__(self, index: int, facts: Device) -> None:
        use_device(index)
        self._index, self._facts = index, facts
        self._stream = Stream(index)
        self._start, self._stop = Event(index), Event(index)
        self._out = DeviceBuffer(1 << 16, device=index)

    def timed(
        self, name: str, *, source: DeviceBuffer | None = None, threads: int = 32, cluster: int = 1
    ) -> Callable[[int], float]:
        """The function from a number of repetitions to the median µs of a launch with them, after one warm-up."""
        module = probe_module(name, threads=threads, cluster=cluster)
        loaded = LoadedModule(module, compile_module(module, self._facts.arch), device=self._index)
        pointers = {"out": self._out.pointer, "in": (source or self._out).pointer}
        bound = loaded.bind().set(pointers=pointers)

        def once(count: int) -> float:
            bound.set(rows=count)
            return self._median(lambda: bound.launch(self._stream), 1)

        return once

    def launch_us(self) -> float:
        """An empty kernel, one of many in a graph."""
        module = probe_module("empty")
        loaded = LoadedModule(module, compile_module(module, self._facts.arch), device=self._index)
        bound = loaded.bind().set(rows=1, pointers={"out": self._out.pointer, "in": self._out.pointer})
        return self._median(lambda: bound.launch(self._stream), 512)

    def copy_gb_per_s(self, size: int) -> float:
        """An elementwise copy that moves `size` bytes, half read and half written, over and over the same memory."""
        half = size // 2
        buffer = DeviceBuffer(size, device=self._index)
        buffer.fill(1)
        self._stream.wait_for(0)
        roof = next(r for r in elementwise_roofs(Streams(read=half, written=half)) if r.name.endswith(" cs"))
        loaded = LoadedModule(roof.module, compile_module(roof.module, self._facts.arch), device=self._index)
        pointers = {"target": buffer.pointer, "source": buffer.pointer + half, "extra": buffer.pointer}
        bound = loaded.bind().set(rows=roof.rows, pointers=pointers, pitches=dict(roof.vectors))
        return size / self._median(lambda: bound.launch(self._stream), 16) / 1e3

    def chase_us(self, size: int) -> float:
        """Latency of one dependent load from a ring of that many bytes."""
        buffer = DeviceBuffer.of(ring(size), device=self._index)
        self._out.fill(0)
        self._stream.wait_for(0)
        return slope_us(self.timed("chase", source=buffer))

    def _median(self, launch: Callable[[], None], launches: int) -> float:
        def work() -> None:
            for _ in range(launches):
                launch()

        graph = Graph.capture(self._stream, work)
        graph.upload(self._stream)
        graph.replay_us(self._stream, self._start, self._stop)
        times = [graph.replay_us(self._stream, self._start, self._stop) / launches for _ in range(REPLAYS)]
        graph.close()
        return statistics.median(times)


def calibrate_gpu(index: int, start: Constants) -> Calibration:
    """Measure what can be measured on GPU `index`; the other constants stay as in `start`."""
    facts = device_facts(index)
    probes = _Probes(index, facts)
    copies = {mib: probes.copy_gb_per_s(mib << 20) for mib in COPY_MIB}
    measured = {
        "launch_us": probes.launch_us(),
        "dram_latency_us": probes.chase_us(DRAM_RING),
        "l2_latency_us": probes.chase_us(L2_RING),
        "l1_latency_us": probes.chase_us(L1_RING),
        "shuffle_us": slope_us(probes.timed("shuffle")),
        "barrier_us": slope_us(probes.timed("barrier", threads=256)),
    }
    if facts.arch >= 90:
        measured["cluster_barrier_us"] = slope_us(probes.timed("cluster_barrier", threads=128, cluster=4))
    return Calibration(constants=adopted(start, measured, copies), copy_gb_per_s=copies, measured_us=measured)


def adopted(start: Constants, measured: dict[str, float], copies: dict[int, float]) -> Constants:
    """`start` with what was measured, less what is noise, and L2 over DRAM bandwidth from the copies."""
    known = start.as_dict()
    good = {name: us for name, us in measured.items() if us > SMALLEST_SHARE * known[name]}
    dram, l2 = copies[max(copies)], max(copies.values())
    return replace(start, **good, l2_over_dram=max(1.0, l2 / dram))


def summary(found: Calibration) -> Sequence[str]:
    """Lines for people."""
    copies = ", ".join(f"{mib} MiB {gb:.0f}" for mib, gb in found.copy_gb_per_s.items())
    return [f"copy, GB/s: {copies}", *(f"{name:<20} {us * 1e3:9.2f} ns" for name, us in found.measured_us.items())]

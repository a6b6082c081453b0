"""What stands in a kernel's place while the roofs are timed: copies and the hand-written kernels of `roofs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from normgen.codegen.module import Module
from normgen.cuda.memory import DeviceBuffer, copy
from normgen.cuda.stream import Stream
from normgen.device import Device
from normgen.measure.chains.ends import Loaded
from normgen.measure.chains.roofs import Roof, Streams, elementwise_roofs, reduction_roofs, streams_of
from normgen.measure.replays import SetLayout, consumed
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse

EVEN = 0.1  # a copy reads as much as it writes: it is no roof where a kernel's reads and writes differ by more

Work = Callable[[int, Stream], None]  # queues what stands in the place of kernel i


@dataclass(frozen=True, kw_only=True)
class Works:
    """The roofs of a problem by name, and what they hold on the device."""

    works: dict[str, Work]
    held: tuple[Loaded | DeviceBuffer, ...]

    def close(self) -> None:
        for part in self.held:
            part.close()


def works_of(problem: Problem, layout: SetLayout, sets: Sequence[DeviceBuffer], facts: Device, index: int) -> Works:
    """Every roof of the problem, on the tensors of its sets."""
    works: dict[str, Work] = {}
    streams = streams_of(problem)
    places = flat_places(problem, layout)

    def base(i: int) -> int:
        return sets[i % len(sets)].pointer

    def by_node(i: int, stream: Stream) -> None:
        size = min(streams.read, streams.written)
        copy(base(i) + places["target"], base(i) + places["source"], size, stream=stream, device=index)

    if not problem.in_place and abs(streams.read - streams.written) <= EVEN * max(streams.read, streams.written):
        works["copy"] = by_node
    sums = _Sums.of(problem, facts)
    partials = DeviceBuffer(max(4 * sums.count * sums.parts, 16), device=index)
    sums_start = min((layout.slots[t.name].start for t in sums.tensors), default=0)
    held: list[Loaded | DeviceBuffer] = [partials]

    def add(roof: Roof, pointers: Callable[[int], dict[str, int]]) -> None:
        loaded = Loaded(roof.module, facts, index)
        held.append(loaded)
        bound = loaded.bound.set(rows=roof.rows, pitches=dict(roof.vectors))

        def work(i: int, stream: Stream) -> None:
            bound.set(pointers=pointers(i)).launch(stream)

        works[roof.name] = work

    def flat_pointers(i: int) -> dict[str, int]:
        return {name: base(i) + place for name, place in places.items()}

    def with_partials(i: int) -> dict[str, int]:
        return flat_pointers(i) | {"extra": partials.pointer, "sums": base(i) + sums_start}

    for roof in _flat_roofs(problem, facts):
        add(roof, with_partials if len(roof.module.kernels) > 1 else flat_pointers)
    for roof in _reduction_roofs(problem, facts):
        add(roof, lambda i: {name: base(i) + offset for name, offset in layout.offsets.items()})
    return Works(works=works, held=tuple(held))


def flat_places(problem: Problem, layout: SetLayout) -> dict[str, int]:
    """Where in a set a flat roof reads, where it writes, and what it writes beside that.

    What is read follows what is written, and of what is read that whose place is taken comes first: there a thread
    writes what it has read, as the kernel does, and not what is still on its way to another thread.
    """
    source = min(layout.slots[t.name].start for t in problem.passed_tensors if not t.is_written)
    return {"target": source if problem.in_place else 0, "source": source, "extra": 0}


def roof_modules(problem: Problem, facts: Device) -> list[Module]:
    """The modules of every roof of the problem: what its bench will load."""
    return [roof.module for roof in (*_flat_roofs(problem, facts), *_reduction_roofs(problem, facts))]


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """A problem's sums over rows.

    count    columns of all of them
    parts    partial rows that a sum adds: of all rows, or of its batch
    streams  what is moved with the partial rows
    """

    tensors: tuple[TensorUse, ...]
    count: int
    parts: int
    streams: Streams

    @classmethod
    def of(cls, problem: Problem, facts: Device) -> _Sums:
        streams = streams_of(problem, parts=facts.sm_count if problem.column_outputs else 0)
        tensors = tuple(t for t in consumed(problem) if t.is_row_sum)
        count = sum(math.prod(problem.shape_of(t)) for t in tensors)
        return cls(tensors=tensors, count=count, parts=-(-streams.partials // max(1, 4 * count)), streams=streams)


def _flat_roofs(problem: Problem, facts: Device) -> Iterator[Roof]:
    yield from elementwise_roofs(streams_of(problem))
    sums = _Sums.of(problem, facts)
    if sums.tensors:
        narrowest = min(t.dtype.bytes for t in sums.tensors)
        yield from elementwise_roofs(sums.streams, sums=(sums.count, narrowest), parts=sums.parts)


def _reduction_roofs(problem: Problem, facts: Device) -> Iterator[Roof]:
    return reduction_roofs(problem, sm_count=facts.sm_count, arch=facts.arch)

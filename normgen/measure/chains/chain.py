"""The chain [P][K][C] around a kernel: who produces, who consumes, and what they read and write in each set."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.module import Module
from normgen.cuda.memory import DeviceBuffer
from normgen.cuda.stream import Stream
from normgen.device import Device
from normgen.errors import NormgenError
from normgen.measure.chains.ends import ConsumedRegion, Ends, PlainEnds, plain_modules
from normgen.measure.chains.kernels import EARLY_ARCH, VECTOR_BYTES
from normgen.measure.chains.matmul import Matmul
from normgen.measure.replays import SetLayout, consumed, extent, main_input
from normgen.problem.problem import Problem
from normgen.records.place import Context


class Chain:
    """P and C of one context over a bench's sets."""

    def __init__(self, problem: Problem, layout: SetLayout, sets: Sequence[DeviceBuffer], ends: Ends) -> None:
        self._layout, self._sets, self._ends = layout, sets, ends
        main = main_input(problem)
        self._shift = layout.offsets[main.name] - layout.slots[main.name].start
        self._main_bytes = extent(main, problem)
        outputs = [(layout.offsets[t.name], extent(t, problem)) for t in consumed(problem)]
        self._own = [[ConsumedRegion(pointer=s.pointer + at, bytes=size) for at, size in outputs] for s in sets]

    def before(self, i: int, stream: Stream | int) -> None:
        """P of link i."""
        base = self._sets[i % len(self._sets)].pointer + self._shift
        source = ConsumedRegion(pointer=base + self._layout.source.start, bytes=self._main_bytes)
        self._ends.produce(self._produced(i), source, stream)

    def behind(self, i: int, stream: Stream | int, outputs: Sequence[ConsumedRegion] = ()) -> None:
        """C of link i, on what K wrote into the set, or on `outputs` of its own."""
        self._ends.consume(outputs or self._own[i % len(self._sets)], stream)

    def without(self, i: int, stream: Stream | int) -> None:
        """Link i without a kernel: C reads what P wrote, as often as it takes to read as much."""
        self.before(i, stream)
        self._ends.consume([self._produced(i)], stream)

    def close(self) -> None:
        self._ends.close()

    def _produced(self, i: int) -> ConsumedRegion:
        start = self._sets[i % len(self._sets)].pointer + self._shift + self._layout.target.start
        return ConsumedRegion(pointer=start, bytes=self._main_bytes)


def chain_modules(context: Context) -> tuple[Module, ...]:
    """The modules of a context's P and C; none of ours alone and between matrix products."""
    if context in (Context.ALONE, Context.MATMUL):
        return ()
    return plain_modules(early=context is Context.CHAIN)


def chain_of(
    context: Context, problem: Problem, layout: SetLayout, sets: Sequence[DeviceBuffer], facts: Device, index: int
) -> Chain:
    """The chain of a context other than `alone`. Raises NormgenError where the device or the problem allows none."""
    if context is Context.MATMUL:
        return Chain(problem, layout, sets, Matmul(problem, index))
    early = context is Context.CHAIN
    if early and facts.arch < EARLY_ARCH:
        rule = f"the context chain needs programmatic dependent launch, sm_{EARLY_ARCH} or later"
        raise NormgenError(rule, received=f"sm_{facts.arch}", hint="--context between")
    vectors = sum(-(-extent(t, problem) // VECTOR_BYTES) for t in consumed(problem))
    return Chain(problem, layout, sets, PlainEnds(vectors, facts, index, early=early))

"""P and C: what every context offers, and the plain kernels that `between` and `chain` have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from normgen.codegen.module import Module
from normgen.cuda.cache import CubinCache
from normgen.cuda.compiler import compile_module
from normgen.cuda.launch import BoundLaunch, LoadedModule
from normgen.cuda.memory import DeviceBuffer
from normgen.cuda.stream import Stream
from normgen.device import Device
from normgen.measure.chains.kernels import MOST_REGIONS, REGIONS, VECTOR_BYTES, module_of


@dataclass(frozen=True, kw_only=True)
class ConsumedRegion:
    """Bytes on the device that a consumer reads."""

    pointer: int
    bytes: int

    @property
    def aligned(self) -> tuple[int, int]:
        """The first 16-byte vector that the region touches, and how many it touches."""
        first = self.pointer // VECTOR_BYTES * VECTOR_BYTES
        return first, -(-(self.pointer + self.bytes - first) // VECTOR_BYTES)


class Ends(Protocol):
    """P and C of one context. Both queue work on a stream, which may be captured."""

    def produce(self, target: ConsumedRegion, source: ConsumedRegion, stream: Stream | int) -> None:
        """Write the target from the source."""

    def consume(self, regions: Sequence[ConsumedRegion], stream: Stream | int) -> None:
        """Read the regions, a [rows, cols] output first."""

    def close(self) -> None:
        """Free what they hold on the device."""


class Loaded:
    """A hand-written module on a device, with its arguments."""

    def __init__(self, module: Module, facts: Device, index: int) -> None:
        cubin = compile_module(module, facts.arch, cache=CubinCache())
        self._module = LoadedModule(module, cubin, device=index)
        self.bound: BoundLaunch = self._module.bind()

    def close(self) -> None:
        self._module.close()


def plain_modules(*, early: bool) -> tuple[Module, Module]:
    """The modules of P and C of `PlainEnds`."""
    suffix = "_early" if early else ""
    return module_of(f"produce{suffix}"), module_of(f"consume{suffix}")


class PlainEnds:
    """Kernels of ours, see `kernels`; early: for the context `chain`.

    vectors   that C reads, whatever regions it is given: it is the same work for every contender, and without any
    """

    def __init__(self, vectors: int, facts: Device, index: int, *, early: bool) -> None:
        self._producer, self._consumer = (Loaded(module, facts, index) for module in plain_modules(early=early))
        self._sink = DeviceBuffer(VECTOR_BYTES, device=index)
        self._consumer.bound.set(rows=vectors, pointers={"sink": self._sink.pointer})
        self._known: dict[tuple[ConsumedRegion, ...], dict[str, Any]] = {}  # a replay asks for each set's many times

    def produce(self, target: ConsumedRegion, source: ConsumedRegion, stream: Stream | int) -> None:
        (to, vectors), (start, _) = target.aligned, source.aligned
        self._producer.bound.set(rows=vectors, pointers={"target": to, "source": start}).launch(stream)

    def consume(self, regions: Sequence[ConsumedRegion], stream: Stream | int) -> None:
        """All of them; of more than four the largest."""
        key = tuple(regions)
        if key not in self._known:
            self._known[key] = _arguments(key)
        self._consumer.bound.set(**self._known[key]).launch(stream)

    def close(self) -> None:
        for held in (self._producer, self._consumer, self._sink):
            held.close()


def _arguments(regions: tuple[ConsumedRegion, ...]) -> dict[str, Any]:
    """What the consumer's `Bound.set` takes for them."""
    read = sorted(regions, key=lambda r: -r.bytes)[:MOST_REGIONS]
    given = [r.aligned for r in regions if r in read]
    given += [(given[0][0], 0)] * (MOST_REGIONS - len(given))
    named = dict(zip(REGIONS, given, strict=True))
    return {
        "pointers": {name: pointer for name, (pointer, _) in named.items()},
        "pitches": {name: vectors for name, (_, vectors) in named.items()},
    }

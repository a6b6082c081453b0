"""A candidate is in one state, and a state never changes: Proposed -> Built -> Checked -> Timed, or Failed from any.

A candidate whose code is an earlier one's is a Twin. Without a GPU the last state is Predicted. Whatever goes wrong
is one `Failed`; there is no other way to be out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from normgen.codegen.module import Module
from normgen.cuda.cubin import Cubin
from normgen.device import Device
from normgen.measure.judge import Eliminated, Passed
from normgen.records.record import Outcome, Record
from normgen.records.statistics import Price, Times
from normgen.records.verified import Verified
from normgen.schedule.schedule import Schedule

Resources = tuple[Mapping[str, Any], ...]
SAME_CODE = "same code as "


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What every state knows; the defaults are of states that do not know better.

    name  the key of one that is not loaded under its schedule's
    text  identity of what was emitted
    chosen  how its schedule came to be tried, as of a `Trial`
    """

    schedule: Schedule
    predicted_us: float | None = None
    name: str = ""
    text: str = ""
    chosen: str = ""

    @property
    def key(self) -> str:
        return self.name or self.schedule.key

    @property
    def registers(self) -> int:
        """The most that a thread of one of its kernels has."""
        return max((int(figures.get("registers", 0)) for figures in self.evidence().get("resources", ())), default=0)

    def evidence(self) -> dict[str, Any]:
        """Fields of a record: all that this state knows of them."""
        names = ("schedule", "predicted_us", "text", "outcome", "reason", "error", "verified", "resources")
        return {name: getattr(self, name) for name in names if hasattr(self, name)} | {"measured": False}

    def proposed(self) -> Proposed:
        return Proposed(**self._base())

    def _base(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(Candidate)}

    def failed(self, outcome: Outcome, reason: str, error: Mapping[str, float] | None = None) -> Failed:
        known = self.evidence()
        facts = {"error": error or known.get("error", {}), "resources": known.get("resources", ())}
        return Failed(**self._base(), outcome=outcome, reason=reason, **facts)

    def known_as(self, record: Record) -> Timed | Failed:
        """The state that an earlier run's record of the same text tells: it is not found out again."""
        facts = self._base() | {"text": record.text, "error": record.error, "resources": record.resources}
        if record.times_us is not None:
            kernel = self if isinstance(self, Built) else None
            facts["verified"] = record.verified
            return Timed(**facts, times_us=record.times_us, reason=record.reason, kernel=kernel, known=record)
        return Failed(**facts, outcome=record.outcome, reason=record.reason, known=record)


@dataclass(frozen=True, kw_only=True)
class Proposed(Candidate):
    """Nothing was done about it."""

    def twin_of(self, first: str, text: str) -> Twin:
        return Twin(**vars(self) | {"text": text}, first=first)

    def built(self, module: Module, cubin: Cubin, text: str) -> Built:
        return Built(**vars(self) | {"text": text}, module=module, cubin=cubin)


@dataclass(frozen=True, kw_only=True)
class Twin(Candidate):
    """Its text, or its machine code and launch, is that of an earlier candidate, whose key is `first`."""

    first: str

    def like(self, first: Timed | Failed) -> Timed | Failed:
        """What became of the earlier one became of this one. Of a twin of twins the first of all is named."""
        named = first.reason if first.reason.startswith(SAME_CODE) else f"{SAME_CODE}{first.schedule}"
        return replace(first, **self._base(), reason=named, known=None)


@dataclass(frozen=True, kw_only=True)
class Built(Candidate):
    """Compiled."""

    module: Module
    cubin: Cubin

    @property
    def resources(self) -> Resources:
        return resources_of(self.module, self.cubin)

    def judged(self, verdict: Passed | Eliminated) -> Checked | Failed:
        if isinstance(verdict, Eliminated):
            return self.failed(verdict.outcome, verdict.reason, verdict.error)
        return Checked(**vars(self) | {"error": verdict.error, "verified": verdict.verified})

    def predicted(self, us: float, reason: str) -> Predicted:
        return Predicted(**vars(self) | {"predicted_us": us}, reason=reason)


@dataclass(frozen=True, kw_only=True)
class Checked(Built):
    """Right. `error` per written tensor as a fraction of its bound; `verified`: where, and by which calls."""

    error: Mapping[str, float] = field(default_factory=dict)
    verified: Verified | None = None

    def timed(self, times_us: Times, price_us: Price | None = None, alone_us: float | None = None) -> Timed:
        facts = self._base() | {"error": self.error, "verified": self.verified, "resources": self.resources}
        return Timed(**facts, kernel=self, times_us=times_us, price_us=price_us, alone_us=alone_us)


@dataclass(frozen=True, kw_only=True)
class Timed(Candidate):
    """Usable, with its time.

    price_us, alone_us  of a finalist
    kernel              None: it was not compiled in this run
    known               the record that it was taken over from
    """

    times_us: Times
    price_us: Price | None = None
    alone_us: float | None = None
    error: Mapping[str, float] = field(default_factory=dict)
    verified: Verified | None = None
    resources: Resources = ()
    reason: str = ""
    kernel: Built | None = None
    known: Record | None = None

    outcome: ClassVar[Outcome] = Outcome.OK

    @property
    def code(self) -> frozenset[str]:
        """Two that share one of these are one kernel: the text, and the first schedule that has the machine code."""
        is_twin = self.reason.startswith(SAME_CODE)  # as an earlier run said of it
        return frozenset((self.text, self.reason.removeprefix(SAME_CODE) if is_twin else str(self.schedule)))

    def evidence(self) -> dict[str, Any]:
        times = {"times_us": self.times_us, "price_us": self.price_us, "alone_us": self.alone_us}
        return super().evidence() | times | {"measured": True}


@dataclass(frozen=True, kw_only=True)
class Predicted(Built):
    """Compiled for a GPU that is not here. `error`: of the check on the CPU executor, where it was made."""

    error: Mapping[str, float] = field(default_factory=dict)
    verified: Verified | None = None
    reason: str = ""
    known: Record | None = None
    outcome: ClassVar[Outcome] = Outcome.PREDICTED


@dataclass(frozen=True, kw_only=True)
class Failed(Candidate):
    """Out. `known`: the record that this was taken over from."""

    outcome: Outcome
    reason: str
    error: Mapping[str, float] = field(default_factory=dict)
    resources: Resources = ()
    known: Record | None = None


Settled = Timed | Predicted | Failed  # what a record is written of


def resources_of(module: Module, cubin: Cubin) -> Resources:
    """The compiler's figures per kernel in launch order, with the kernel's name, threads and dynamic shared memory."""
    figures = []
    for kernel in module.kernels:
        found = cubin.resources[kernel.name]
        figures.append(
            {
                "kernel": kernel.name,
                "threads": kernel.launch.threads,
                "registers": found.registers,
                "spill_bytes": found.spill_bytes,
                "stack_bytes": found.stack_bytes,
                "static_shared_bytes": found.static_shared_bytes,
                "dynamic_shared_bytes": kernel.launch.shared_bytes,
            }
        )
    return tuple(figures)


def misfit(resources: Sequence[Mapping[str, Any]], device: Device) -> str | None:
    """Why a block of one of the kernels fits no SM: registers or shared memory. None when all fit."""
    for figures in resources:
        granule = -(-int(figures["registers"]) // 8) * 8  # allocated in units of 8 a thread
        if granule * int(figures["threads"]) > device.registers_per_sm:
            asked = f"{figures['threads']} threads x {granule} registers"
            return f"{figures['kernel']}: {asked} exceed {device.registers_per_sm}"
        shared = int(figures["static_shared_bytes"]) + int(figures["dynamic_shared_bytes"])
        if shared > device.shared_per_block:
            return f"{figures['kernel']}: {shared} bytes of shared memory exceed {device.shared_per_block}"
    return None


def local_bytes(resources: Sequence[Mapping[str, Any]]) -> int:
    """Bytes a thread keeps in local memory: spilled registers, and arrays the compiler could not keep in any."""
    return sum(int(figures["spill_bytes"]) + int(figures["stack_bytes"]) for figures in resources)

"""One schedule of one question, tried: what everything that tunes, sweeps or races keeps of it.

A line of a file has only what is not at its default; device, versions and what every trial shares stand in the head.

schedule, chosen     the knobs that are not plain; how the schedule came to be tried: the "default"; a "record" that was
                     known; among the first by the cost "model"; by the "search", its "region" of the best, or a "tune"
                     that did not keep which; the "counterpart" of the best with or without statistics; a legal one at
                     "random"; by "hand"; as the known winner of a "tuned" problem; of a sweep's "sample"
outcome, reason      as a record's
us, base_us          median T, and T0 of the same run; alone the time of a launch, and 0; of a prediction, the model's
ratio                of a race whose µs were not kept: T over that of another one of its run
price_us, low, high  T - T0 over the rounds; 95 % interval of the price, or of what stands in its place
registers, spill_bytes    of a thread: the most of its kernels; the sum
error                largest error of any tensor, as a fraction of its bound
twin                 an earlier schedule with the same machine code, whose figures these are
question, place      plain values as of a record, and where it was timed
run                  of one name, and of one question, times may be compared
device, versions     plain values as of a record; these five where the head does not say them for all
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from normgen.files.plain import spelled
from normgen.records.place import Place
from normgen.records.record import Outcome, Record
from normgen.schedule.schedule import Schedule, changed

SPELLED = spelled(str, partial(changed, Schedule()))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """See the module's docstring."""

    schedule: Schedule = field(metadata=SPELLED)
    chosen: str = ""
    outcome: Outcome = Outcome.OK
    us: float | None = None
    base_us: float = 0.0
    ratio: float | None = None
    price_us: float | None = None
    low: float | None = None
    high: float | None = None
    registers: int = 0
    spill_bytes: int = 0
    error: float | None = None
    reason: str = ""
    twin: Schedule | None = field(default=None, metadata=SPELLED)
    question: Mapping[str, Any] | None = field(default=None, hash=False)
    place: Place | None = None
    run: str = ""
    device: Mapping[str, Any] | None = field(default=None, hash=False)
    versions: Mapping[str, str] | None = field(default=None, hash=False)

    SPARSE = True

    def __post_init__(self) -> None:
        for name in ("us", "ratio", "registers", "spill_bytes"):
            value = getattr(self, name)
            if value is not None and not (0 < value < float("inf") if name in ("us", "ratio") else value >= 0):
                raise ValueError(f"{name} is a number above 0: {value!r}")

    @property
    def key(self) -> str:
        return str(self.schedule)

    @property
    def measured(self) -> bool:
        """A GPU timed it."""
        return (self.us or self.ratio) is not None and self.outcome is not Outcome.PREDICTED

    @property
    def cost_us(self) -> float | None:
        """The price, or what stands in its place: T - T0, alone the time; None where that is not above 0."""
        us = self.price_us if self.price_us is not None or self.us is None else self.us - self.base_us
        return us if us is not None and us > 0 else None


def trial_of(record: Record, **facts: Any) -> Trial:
    """What a trial keeps of a record; `facts`: other fields."""
    interval = record.cost_interval or (None, None)
    return Trial(
        schedule=record.schedule,
        outcome=record.outcome,
        us=record.us,
        base_us=record.chain_us.median if record.chain_us else 0.0,
        price_us=record.price_us.median if record.price_us else None,
        low=interval[0],
        high=interval[1],
        registers=max((int(r.get("registers", 0)) for r in record.resources), default=0),
        spill_bytes=sum(int(r.get("spill_bytes", 0)) for r in record.resources),
        error=max((e for e in record.error.values() if e is not None), default=None),
        reason=record.reason,
        **facts,
    )

"""Records: one measured or predicted result with all its evidence, as one JSON line.

schema         2-digit layout version; a reader refuses others
op, spec_sha256, direction, rows, cols, dtypes, pitch, align, any_cols, accumulate      the problem
deterministic  the same bits in every run, stable_parameters: promises; there only when true
in_place       written tensor -> the read tensor whose memory it takes; there only where there is one
layout         tensor of groups -> how it lies in memory; there only where one is not row-major; matrix -> the order of
               its axes, where not its spec's
context, setting  where it was timed (`records.place`); older lines have `cache` instead: alone, cold or hot
schedule       every knob
text           the identity of the emitted text and the compile options (`cuda.compiler.identity_of`); absent where
               nothing was emitted, and from older records
outcome        ok | illegal | compile_error | launch_error | timeout | wrong_result | worker_died | predicted
measured       false: no GPU ran this, `predicted_us` is the cost model's word
times_us       n, median, p05, p95, low, high (95 % interval of the median) in µs: of the chain with the kernel, T;
               alone of a launch
chain_us       the same of the chain without it, T0, in the same run; absent alone
price_us       T - T0: median, low, high (bootstrapped 95 % interval); absent alone, and where a search went no further
               than to rank by T
alone_us       of a finalist timed in place: the median of a launch behind itself
roof_us        what the best hand-written kernel that moves the bytes costs in the same run: its price, alone its time
roofs_us       the best of each family: copy (a memcpy node), elementwise, reduction, two launches; of products
               arithmetic, which is the roof where it takes longer than the bytes
flops, tflops  of products: additions and multiplications, and their rate
bytes, gb_per_s, percent_of_roof (by prices), default_us (the default schedule's T, same run)
error          largest error per written tensor, as a fraction of its bound
verified       where the kernel was compared with the reference, and how widely (`records.verified`); absent from what
               was not, or failed, and from older records
resources      per kernel: registers, spill_bytes, static_shared_bytes, ...
device, versions, search, command, seed, created, reason
spec           the text of a spec that does not come with normgen: the record can be exported by itself
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from normgen.device import TARGETS, device_from
from normgen.errors import NormgenError
from normgen.files.decoded import parse_json
from normgen.files.names import NamePart, name_part
from normgen.files.plain import BESIDE, fields_of, rounded
from normgen.problem.question import Question
from normgen.records.place import DEFAULT_PLACE, Context, Place, Setting
from normgen.records.statistics import Price, Times
from normgen.records.validity import check_record
from normgen.records.verified import Outcome as Outcome
from normgen.records.verified import Verified
from normgen.schedule.schedule import Schedule, schedule_from

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """One result with all its evidence; see the module's docstring for the fields."""

    problem: Question = field(metadata=BESIDE)
    place: Place = field(default=DEFAULT_PLACE, metadata=BESIDE)
    schedule: Schedule
    text: str = ""
    outcome: Outcome
    measured: bool
    times_us: Times | None = None
    chain_us: Times | None = None
    price_us: Price | None = None
    alone_us: float | None = None
    predicted_us: float | None = None
    roof_us: float | None = None
    roofs_us: Mapping[str, float] = field(default_factory=dict, hash=False)
    bytes: int = 0
    flops: int = 0
    default_us: float | None = None
    error: Mapping[str, float] = field(default_factory=dict, hash=False)
    verified: Verified | None = None
    resources: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    device: Mapping[str, Any] = field(default_factory=dict, hash=False)
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    search: Mapping[str, Any] = field(default_factory=dict, hash=False)
    command: str = ""
    seed: int = 0
    created: str = ""
    reason: str = ""
    spec: str = ""  # the text of a spec that does not come with normgen

    @property
    def us(self) -> float | None:
        """What candidates of one run are ranked by: the measured median of T, or alone of a launch; the prediction of a
        record that is one; None for a failure."""
        if self.times_us is not None:
            return self.times_us.median
        return self.predicted_us if self.outcome is Outcome.PREDICTED else None

    @property
    def excess(self) -> str:
        """The tensors whose error is not within its bound, each with it; empty where all are."""
        beyond = {name: share for name, share in self.error.items() if share is None or not share <= 1}
        return ", ".join(f"{name} {'not finite' if e is None else f'{e:.4g} of it'}" for name, e in beyond.items())

    @property
    def is_usable(self) -> bool:
        """The kernel may be shipped: `Outcome.is_usable`, and no error of it is known to be beyond its bound."""
        return self.outcome.is_usable and not self.excess

    @property
    def is_alone(self) -> bool:
        """Measured without a chain: there is no price."""
        return self.measured and self.place.context is Context.ALONE

    @property
    def cost_us(self) -> float | None:
        """What a table shows first: the price; alone, or predicted, the time itself. None where it is not above 0."""
        if self.price_us is not None:
            us: float | None = self.price_us.median
        elif self.times_us is not None and self.chain_us is not None:
            us = self.times_us.median - self.chain_us.median
        else:
            us = self.us
        return us if us is not None and us > 0 else None

    @property
    def cost_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `cost_us`: the price's; without one that of T, less T0; None if it was not measured."""
        if self.price_us is not None:
            return self.price_us.low, self.price_us.high
        base_us = self.chain_us.median if self.chain_us else 0.0
        return (self.times_us.low - base_us, self.times_us.high - base_us) if self.times_us else None

    @property
    def default_cost_us(self) -> float | None:
        """The cost of the default schedule in the same run, in µs: its T - T0, or alone its time."""
        if self.default_us is None:
            return None
        us = self.default_us - (self.chain_us.median if self.chain_us else 0.0)
        return us if us > 0 else None

    @property
    def gb_per_s(self) -> float | None:
        return self.bytes / self.cost_us / 1e3 if self.cost_us else None

    @property
    def tflops(self) -> float | None:
        """Of products, 10^12 operations a second; None of other problems, and without a time."""
        return self.flops / self.cost_us / 1e6 if self.flops and self.cost_us else None

    @property
    def percent_of_roof(self) -> float | None:
        return 100.0 * self.roof_us / self.cost_us if self.cost_us and self.roof_us else None

    @property
    def to_copy(self) -> float | None:
        """The cost over that of a memcpy node of the same bytes; None where the run did not keep it."""
        copy_us = self.roofs_us.get("copy")
        return self.cost_us / copy_us if self.cost_us and copy_us else None

    def serves(self, key: Question) -> bool:
        """Whether the record is one of this problem.

        A deterministic one is served by every record whose kernel sums columns in a fixed order, a batch-invariant one
        by every record whose kernel treats all rows alike, promised or not.
        """
        own = self.problem
        if key.deterministic and self.schedule.columns.is_deterministic:
            own = replace(own, deterministic=True)
        if key.batch_invariant and self.schedule.is_batch_invariant:
            own = replace(own, batch_invariant=True)
        return own == key

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values in the fixed key order of the file format: that of the fields, rates behind the bytes."""
        found = {name: value for name, value in fields_of(self).items() if value or name not in _OPTIONAL}
        found["versions"] = dict(sorted(self.versions.items()))
        rates = {"tflops": self.tflops} if self.flops else {}
        rates |= {"gb_per_s": self.gb_per_s, "percent_of_roof": self.percent_of_roof}
        said, at = list(found.items()), list(found).index("default_us")
        rounded_: dict[str, Any] = rounded({"schema": SCHEMA, **dict(said[:at]), **rates, **dict(said[at:])})
        return rounded_

    def line(self) -> str:
        """The record as one JSON line, newline included."""
        return json.dumps(self.as_dict(), ensure_ascii=False, allow_nan=False) + "\n"


PRICE_SLACK = 0.05  # of T: a price is a median over rounds of T - T0, and not the difference of their medians
_OPTIONAL = ("text", "chain_us", "price_us", "alone_us", "roofs_us", "flops", "verified", "spec")  # not in every line
_FIGURES = {"times_us": Times, "chain_us": Times, "price_us": Price}


def parse_line(text: str) -> Record:
    """The record of one JSON line. Raises ValueError with what is wrong with it."""
    return from_dict(parse_json(text))


def place_of(data: Mapping[str, Any]) -> Place:
    """Where the figures of a parsed line, or of a sweep's header, come from."""
    if "cache" in data:
        return Place(context=Context.ALONE, setting=Setting(data["cache"]))
    return Place(context=Context(data["context"]), setting=Setting(data["setting"]))


def from_dict(data: Any) -> Record:
    """The record of a parsed line. Raises ValueError for what `schema.json` refuses, and for figures at odds."""
    if isinstance(data, dict) and data.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"schema {data['schema']!r}, this version reads {SCHEMA}")
    check_record(data)
    missing = sorted({"context", "setting"} - set(data))
    if missing and ("cache" not in data or len(missing) == 1):
        raise ValueError(f"the line has missing keys: {missing}")
    if not missing and "cache" in data:
        raise ValueError("the line has context and setting, and cache, which stood for both")
    try:
        name_part(NamePart.OP, data["op"])
        if data["device"]:
            device_from(data["device"])
        schedule = schedule_from(data["schedule"])
    except NormgenError as error:
        raise ValueError(": ".join(part for part in (error.rule, error.received) if part)) from None
    as_said = {f.name for f in fields(Record)} - {"problem", "place", "schedule", "outcome", "verified", "resources"}
    said: dict[str, Any] = {name: value for name, value in data.items() if name in as_said}
    said |= {name: kind(**said[name]) if said.get(name) else None for name, kind in _FIGURES.items()}
    record = Record(
        problem=Question.of(data),
        place=place_of(data),
        schedule=schedule,
        outcome=Outcome(data["outcome"]),
        verified=Verified.of(data["verified"]) if "verified" in data else None,
        resources=tuple(data["resources"]),
        **said,
    )
    for name in _FIGURES:
        found = getattr(record, name)
        if found and not found.low <= found.median <= found.high:
            raise ValueError(f"{name}.median must lie from low to high: {found}")
    if record.place.context is Context.ALONE and (record.chain_us or record.price_us):
        raise ValueError("a kernel that is timed alone has no chain and no price")
    if record.price_us and not (record.times_us and record.chain_us):
        raise ValueError("a price comes with the times of the chain, with the kernel and without")
    if record.outcome.is_usable and record.us is None:
        raise ValueError(f"outcome {record.outcome} must come with a time")
    if odds := _at_odds(record):
        raise ValueError(odds)
    return record


def _at_odds(record: Record) -> str:
    """What one part of a record says against another one; empty where all fits."""
    key, verified, times, chain = record.problem, record.verified, record.times_us, record.chain_us
    if verified and not key.any_cols and key.cols not in verified.cols:
        return f"verified.cols must have the cols of the problem, {key.cols}: {list(verified.cols)}"
    name, arch = record.device.get("name"), record.device.get("arch")
    known = next((device.arch for device in TARGETS.values() if device.name == name), arch)
    if arch != known:
        return f"device.arch of an {name} must be {known}: {arch}"
    if record.price_us and times and chain:
        low, high = times.p05 - chain.p95, times.p95 - chain.p05
        slack = PRICE_SLACK * times.median
        if not low - slack <= record.price_us.median <= high + slack:
            return f"price_us.median must be what times_us has above chain_us: {record.price_us.median}"
        if record.price_us.high < -slack:
            return f"price_us must not be below 0, as no kernel takes time away: {record.price_us.high} at most"
    return ""


def is_better(new: Record, old: Record | None, *, text_now: Callable[[Schedule], str] | None = None) -> bool:
    """Whether `new` replaces `old` in a file of winners. Raises ValueError for records of different places.

    Measured beats predicted; a record of another text of the spec, or whose schedule is emitted as another text today
    (`text_now`, where the caller can emit), cannot be compared and gives way; otherwise the shorter time wins, beyond
    the noise the new run measured.
    """
    if old is None:
        return new.is_usable
    if new.place != old.place:
        raise ValueError(f"times {new.place} and {old.place} are not comparable")
    if not new.is_usable or (old.measured and not new.measured):
        return False
    stale = old.problem.spec_sha256 != new.problem.spec_sha256
    if not stale and text_now is not None and old.text:
        stale = text_now(old.schedule) != old.text
    if stale or (new.measured and not old.measured) or old.schedule == new.schedule:
        return True
    if new.search.get("incumbent") == old.schedule.key:
        return True  # beaten in one interleaved run, beyond its noise: `measure.confirm` keeps an incumbent in a tie
    if new.us is None or old.us is None:
        return old.us is None
    noise = float(new.search.get("noise_floor") or 0.0)
    return new.us < old.us * (1 - noise)

"""What the nearest-schedule rule is worth: at random shapes, its kernel against the one that tuning finds.

The JSON object (`Transfer.as_dict`), times in µs, ratios formed round by round:

schema, device, versions, options, started, seconds, finished, note      as in `trials.head`
median, worst           of the shapes' fractions
shapes                  one object a shape:
  label                 as a suite's entry
  rule                  where the rule's schedule comes from: the neighbour, or the default schedule
  us, schedules         of rule, tuned and default; prices (alone: times)
  fraction              {median, low, high}: tuned's T over the rule's; 1 is as fast as a tuned kernel
  price_fraction        the same of prices
  default_fraction      the same of the default schedule
  roof_us               the best hand-written kernel that moves the bytes
  failed                name -> why it has no time
  seconds               wall time, the tune included
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from normgen.bench.runner import tuned
from normgen.choice.first import default_schedule
from normgen.errors import NormgenError, NothingValidError, UsageError
from normgen.measure.protocol import DeviceLostError
from normgen.records import statistics
from normgen.records.nearest import nearest
from normgen.records.questions import problem_of
from normgen.records.record import Record
from normgen.records.statistics import Ratio
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.suites.bands import Bands
from normgen.suites.suite import Entry
from normgen.text import figure, table
from normgen.trials.contest import Contest, Venue, hold
from normgen.trials.head import Run, reason_of
from normgen.trials.run import How, run
from normgen.tuning.progress import Progress

ROUND_COLS = 64  # three shapes of four have a multiple of it, as models have; the fourth any number of cols
TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What was found at one shape; see the module's docstring."""

    label: str
    rule: str
    us: Mapping[str, float | None] = field(hash=False)
    schedules: Mapping[str, str] = field(hash=False)
    fraction: Ratio | None
    default_fraction: Ratio | None
    roof_us: float | None
    failed: Mapping[str, str] = field(hash=False)
    seconds: float
    price_fraction: Ratio | None = None


@dataclass(frozen=True, kw_only=True)
class Transfer(Run):
    """A whole run."""

    TRIALS = "shapes"
    WRITER = "`normgen bench --nearest ... --json`"

    shapes: tuple[Shape, ...] = ()

    @property
    def fractions(self) -> list[float]:
        return [s.fraction.median for s in self.shapes if s.fraction]

    @property
    def median(self) -> float | None:
        return statistics.median(self.fractions) if self.fractions else None

    def figures(self) -> dict[str, float | None]:
        return {"median": self.median, "worst": min(self.fractions, default=None)}


def random_entries(records: Sequence[Record], *, count: int, seed: int) -> list[Entry]:
    """Shapes that nobody tuned, each of the operation, dtypes and cache of a record.

    Rows and cols are log-uniform between the least and the most of the records of the same direction and cache, their
    bytes too are within what those records move. Raises NothingValidError without records.
    """
    specs = {op: load(op).sha256 for op in {r.problem.op for r in records}}
    present = (r for r in records if r.measured and r.problem.spec_sha256 == specs[r.problem.op])
    measured = sorted(present, key=lambda r: r.line())
    if not measured:
        raise NothingValidError("random shapes are drawn around measured records", received="none of this GPU")
    rng = random.Random(seed)
    entries: list[Entry] = []
    while len(entries) < count:
        entry = _random_entry(rng.choice(measured), measured, rng)
        if all(entry.problem != other.problem for other in entries):
            entries.append(entry)
    return entries


def _random_entry(record: Record, records: Sequence[Record], rng: random.Random) -> Entry:
    like = [r for r in records if (r.problem.direction, r.place) == (record.problem.direction, record.place)]
    spec = load(record.problem.op)
    sizes = [r.bytes for r in like]
    tuned = {(r.problem.rows, r.problem.cols) for r in like}
    for _ in range(TRIES):
        rows = _log_uniform([r.problem.rows for r in like], rng)
        cols = _log_uniform([r.problem.cols for r in like], rng)
        if rng.random() < 0.75:
            cols = _whole(cols, ROUND_COLS)
        rows, cols = _whole(rows, record.problem.batches), _whole(cols, spec.whole_cols)
        key = replace(record.problem, rows=rows, cols=cols, pitch=cols, align=16)
        problem = problem_of(key, spec)
        if (rows, cols) not in tuned and min(sizes) <= problem.compulsory_bytes <= max(sizes):
            return Entry(op=record.problem.op, shape=f"{rows}x{cols}", problem=problem, place=record.place)
    raise UsageError("the records' ranges must leave room for another shape", received=str(record.problem))


def row_entries(records: Sequence[Record], rows: tuple[int, int], *, count: int, seed: int) -> list[Entry]:
    """Row counts of the one problem that the records were tuned for at others: log-uniform, none of those tuned.

    Raises UsageError for records of several problems, or where there are not so many counts.
    """
    if len({replace(r.problem, rows=1) for r in records}) != 1:
        raise UsageError("row counts are drawn about the records of one problem", received=f"{len(records)} records")
    record, tuned, rng = records[0], {r.problem.rows for r in records}, random.Random(seed)
    drawn: set[int] = set()
    for _ in range(TRIES):
        drawn |= {_log_uniform(rows, rng)} - tuned
        if len(drawn) == count:
            break
    else:
        raise UsageError("the range must have so many row counts", received=f"{count} of {rows[0]}..{rows[1]}")
    spec = load(record.problem.op)
    return [
        Entry(
            op=record.problem.op,
            shape=f"{number}x{record.problem.cols}",
            problem=problem_of(replace(record.problem, rows=number), spec),
            place=record.place,
        )
        for number in sorted(drawn)
    ]


def _whole(size: int, unit: int) -> int:
    """The multiple of `unit` nearest to `size`, and not 0: whole groups of columns, whole batches of rows."""
    return max(unit, round(size / unit) * unit)


def _log_uniform(values: Sequence[int], rng: random.Random) -> int:
    return round(math.exp(rng.uniform(math.log(min(values)), math.log(max(values)))))


def run_transfer(
    entries: Sequence[Entry],
    records: Sequence[Record],
    venue: Venue,
    *,
    budget_s: float,
    progress: Progress,
    trials: int | None = None,
    is_banded: bool = False,
    **how: Unpack[How],
) -> Transfer:
    """Tune and time every entry.

    records   what the rule may know: read before anything is tuned, so that no winner of this run is among them
    is_banded  the rule is that of a handle for any number of rows: what its band's count gets, not the nearest record
    """
    rule = _banded if is_banded else _nearest

    def measure(entry: Entry) -> list[Shape]:
        found = rule(entry, records, venue)
        return [_measure(entry, found, venue, progress, budget_s=budget_s, trials=trials)]

    head = venue.head(shapes=len(entries), budget_s=budget_s, trials=trials, records=len(records))
    return run(
        Transfer(**head),
        entries,
        measure,
        progress=progress,
        words=lambda shapes: progress_text(shapes[0]),
        **how,
    )


def _measure(
    entry: Entry,
    rule: tuple[Schedule, str] | None,
    venue: Venue,
    progress: Progress,
    *,
    budget_s: float,
    trials: int | None,
) -> Shape:
    start = time.monotonic()
    default = default_schedule(entry.problem, venue.facts)
    schedule, words = rule or (default, "default schedule")
    schedules = {"rule": schedule, "default": default}
    try:
        schedules["tuned"] = tuned(entry, venue, progress, budget_s=budget_s, trials=trials)
    except DeviceLostError:
        raise
    except NormgenError as error:
        found = Contest(failed={"tuned": reason_of(error)})
    else:
        found = hold(entry.problem, entry.place, schedules, venue, note=progress.note)
    return Shape(
        label=entry.label,
        rule=words,
        us={name: found.cost_us(name) for name in ("rule", "tuned", "default")},
        schedules={name: str(schedule) for name, schedule in schedules.items()},
        fraction=found.ratio("tuned", "rule"),
        default_fraction=found.ratio("tuned", "default"),
        price_fraction=found.price_ratio("tuned", "rule"),
        roof_us=found.roof[1],
        failed=found.failed,
        seconds=time.monotonic() - start,
    )


def _nearest(entry: Entry, records: Sequence[Record], venue: Venue) -> tuple[Schedule, str] | None:
    near = nearest(entry.problem, venue.facts, records, place=entry.place)
    return (near.schedule, _size(near.record)) if near else None


def _banded(entry: Entry, records: Sequence[Record], venue: Venue) -> tuple[Schedule, str] | None:
    found = Bands(entry.problem, venue.facts, place=entry.place, records=records).lookup(entry.problem.rows)
    return (found.schedule, _size(found.record)) if found.schedule and found.record else None


def _size(record: Record) -> str:
    return f"{record.problem.rows}x{record.problem.cols}"


def progress_text(shape: Shape) -> str:
    if shape.fraction is not None:
        return f"{100 * shape.fraction.median:.1f} % of what tuning gives ({shape.rule})"
    return "; ".join(f"{name}: {reason}" for name, reason in shape.failed.items())


def transfer_text(found: Transfer) -> str:
    """A line a shape, then the median."""
    rows = [list(_row(shape)) for shape in found.shapes]
    header = ["shape", "rule µs", "tuned µs", "default µs", "roofline µs"]
    header += ["rule %", "default %", "marginal %", "schedule of"]
    lines = [table(header, rows), ""]
    lines += [f"{s.label}: {name}: {reason}" for s in found.shapes for name, reason in s.failed.items()]
    if found.median is not None:
        n, low = len(found.fractions), min(found.fractions)
        share = f"{100 * found.median:.1f} % of what tuning gives (median of {n}), {100 * low:.1f} % at worst"
        lines.append(f"the rule reaches {share}")
    lines += [f"NOT FINISHED: {found.note}"] if not found.finished else []
    return "\n".join(lines)


def _row(shape: Shape) -> Iterator[str]:
    yield shape.label
    yield from (figure(shape.us[name]) for name in ("rule", "tuned", "default"))
    yield figure(shape.roof_us)
    for fraction in (shape.fraction, shape.default_fraction, shape.price_fraction):
        yield f"{100 * fraction.median:.1f}" if fraction else "-"
    yield shape.rule

"""The figures of a report as plain JSON values: what the page embeds, and what both kinds of plots draw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from normgen.bench.result import EntryResult, Provider, Results
from normgen.files.shipped import VERSION
from normgen.problem.question import Question
from normgen.records.place import DEFAULT_PLACE
from normgen.records.record import Outcome, Record
from normgen.records.statistics import median
from normgen.records.verified import told
from normgen.report.evidence import SEARCH, Evidence, Series
from normgen.report.importance import KnobShare, knob_shares
from normgen.schedule.schedule import Schedule
from normgen.trials.trial import Trial

ROOF_FIELDS = ("op", "direction", "dtype", "place", "device")


@dataclass(frozen=True, kw_only=True)
class RoofPoint:
    """One shape of a line; `confirmed` by a final record, or only the best of a search or sweep."""

    rows: int
    cols: int
    us: float
    gb_per_s: float
    percent_of_roof: float
    confirmed: bool
    schedule: str


@dataclass(frozen=True, kw_only=True)
class RoofLine:
    """% of roofline over cols of one op, direction, dtype, place and device, by cols then rows."""

    op: str
    direction: str
    dtype: str
    place: str
    device: str
    points: tuple[RoofPoint, ...]

    @property
    def label(self) -> str:
        return f"{self.op} {self.direction} {self.dtype}" + (
            f" {self.place}" if self.place != str(DEFAULT_PLACE) else ""
        )

    def middle(self) -> tuple[tuple[int, float], ...]:
        """(cols, median % of roofline over the rows measured there)."""
        by_cols: dict[int, list[float]] = {}
        for point in self.points:
            by_cols.setdefault(point.cols, []).append(point.percent_of_roof)
        return tuple((cols, median(values)) for cols, values in sorted(by_cols.items()))


def dtype_of(key: Question) -> str:
    """The dtype a problem is called by: that of the input x, else of the launch's first tensor."""
    dtypes = dict(key.dtypes)
    return dtypes.get("x") or key.dtypes[0][1]


def problem_facts(key: Question) -> dict[str, Any]:
    """What the page filters and labels by."""
    plain = {"op": key.op, "direction": key.direction, "dtype": dtype_of(key), "rows": key.rows, "cols": key.cols}
    return (
        plain
        | {"dtypes": dict(key.dtypes), "pitch": key.pitch, "align": key.align}
        | ({"col_stride": key.col_stride} if key.col_stride != 1 else {})
    )


def families_of(evidence: Evidence) -> list[tuple[str, str, str, str]]:
    """What may have a colour of its own: each (op, direction, dtype, place), those with most points first."""
    points = Counter(family_of(series) for series in evidence.series)
    for line in roof_lines(evidence):
        points[line.op, line.direction, line.dtype, line.place] += len(line.points)
    return sorted(points, key=lambda family: (-points[family], family))


def family_of(series: Series) -> tuple[str, str, str, str]:
    return series.problem.op, series.problem.direction, dtype_of(series.problem), str(series.place)


def label_of(series: Series) -> str:
    """A series in words: op, direction, dtype, shape, and what is not usual about it."""
    key = series.problem
    words = [key.op, key.direction, dtype_of(key), f"{key.rows}×{key.cols}"]
    words += [str(series.place)] if series.place != DEFAULT_PLACE else []
    words += [f"seed {series.seed}"] if series.seed else []
    words += [] if series.kind == SEARCH else [f"({series.kind})"]
    return " ".join(words)


def labels_of(series: Sequence[Series]) -> list[str]:
    """A label for each series, numbered where several would be the same."""
    plain = [label_of(s) for s in series]
    seen: dict[str, int] = {}
    labels = []
    for label in plain:
        seen[label] = seen.get(label, 0) + 1
        labels.append(f"{label} #{seen[label]}" if plain.count(label) > 1 else label)
    return labels


def roof_lines(evidence: Evidence) -> tuple[RoofLine, ...]:
    """One line per op, direction, dtype, place and device.

    A shape's point is its fastest measured final record; without one, the best measured candidate.
    """
    points: dict[tuple[Any, ...], dict[tuple[Any, ...], RoofPoint]] = {}
    for key, line, point in [*_final_points(evidence.finals), *_series_points(evidence.series)]:
        slots = points.setdefault(line, {})
        old = slots.get(key)
        if old is None or (not point.confirmed, point.us) < (not old.confirmed, old.us):
            slots[key] = point
    lines = []
    for line, slots in sorted(points.items()):
        ordered = sorted(slots.values(), key=lambda p: (p.cols, p.rows, p.us))
        lines.append(RoofLine(**dict(zip(ROOF_FIELDS, line, strict=True)), points=tuple(ordered)))
    return tuple(lines)


def page_data(evidence: Evidence) -> dict[str, Any]:
    """The object the page embeds.

    series: {label, kind, op .. align, place, device, roof_us, default_us, bytes, measured, best (so far, per trial),
    knobs (values of those that vary), shares, trials}; a trial's `codes` count into `knobs`.
    finals: records as in their files, with label fields, `us` a cost (`Record.cost_us`) and `chain` [T, T0];
    benches: {suite, label, op, direction, dtype, place, device, us (our price), peers: {name: {us, ratio, why}}},
    ratio a peer's price over ours; roof: lines; environments; measures; sources.
    """
    labels = labels_of(evidence.series)
    data: dict[str, Any] = _finite(
        {
            "generated": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "normgen": VERSION,
            "outcomes": [o.value for o in Outcome],
            "series": [_series(s, label) for s, label in zip(evidence.series, labels, strict=True)],
            "finals": [_final(r) for r in evidence.finals],
            "benches": [_bench(entry, result) for result in evidence.benches for entry in result.entries],
            "roof": [_line(line) for line in roof_lines(evidence)],
            "environments": _environments(evidence),
            "measures": _measures(evidence.finals),
            "sources": [{"path": s.path, "found": s.found, "damaged": list(s.damaged)} for s in evidence.sources],
        }
    )
    return data


def _series(series: Series, label: str) -> dict[str, Any]:
    names = [f.name for f in fields(Schedule)]
    values = {name: sorted({getattr(t.schedule, name) for t in series.trials}) for name in names}
    knobs = {name: found for name, found in values.items() if len(found) > 1}
    return problem_facts(series.problem) | {
        "label": label,
        "kind": series.kind,
        "place": str(series.place),
        "device": str(series.device.get("name", "unknown device")),
        "roof_us": series.roof_us,
        "default_us": series.default_us,
        "bytes": series.bytes,
        "measured": series.measured,
        "command": series.command,
        "created": series.created,
        "source": series.source,
        "best": list(series.best_so_far()),
        "knobs": knobs,
        "shares": [_share(s) for s in knob_shares(series.timed)],
        "trials": [_trial(t, knobs) for t in series.trials],
    }


def _trial(trial: Trial, knobs: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    shown = {
        "us": trial.cost_us,
        "low": trial.low,
        "high": trial.high,
        "registers": trial.registers,
        "spill": trial.spill_bytes,
        "error": trial.error,
        "reason": trial.reason,
    }
    return {
        "schedule": str(trial.schedule),
        "outcome": trial.outcome.value,
        "codes": [found.index(getattr(trial.schedule, name)) for name, found in knobs.items()],
        **{name: value for name, value in shown.items() if value},
    }


def _share(share: KnobShare) -> dict[str, Any]:
    levels = [{"value": v.value, "count": v.count, "best": v.best_us, "median": v.median_us} for v in share.levels]
    return {"knob": share.knob, "share": share.share, "chance": share.chance, "levels": levels}


def _final(record: Record) -> dict[str, Any]:
    return problem_facts(record.problem) | {
        "place": str(record.place),
        "device": str(record.device.get("name", "unknown device")),
        "schedule": str(record.schedule),
        "outcome": record.outcome.value,
        "measured": record.measured,
        "us": record.cost_us,
        "low": record.cost_interval[0] if record.cost_interval else None,
        "high": record.cost_interval[1] if record.cost_interval else None,
        "chain": [record.us, record.chain_us.median] if record.chain_us else None,
        "alone_us": record.alone_us,
        "bytes": record.bytes,
        "roof_us": record.roof_us,
        "default_us": record.default_cost_us,
        "noise": record.search.get("noise_floor"),
        "error": max((e for e in record.error.values() if e is not None), default=None),
        "verified": told([record.verified])[0],
        "registers": max((int(r.get("registers", 0)) for r in record.resources), default=0),
        "spill": sum(int(r.get("spill_bytes", 0)) for r in record.resources),
        "reason": record.reason,
        "command": record.command,
        "created": record.created,
        "search": dict(record.search),
    }


def _bench(entry: EntryResult, results: Results) -> dict[str, Any]:
    def told(peer: Provider) -> dict[str, Any]:
        ratio = peer.our_price_to_this or (None if peer.price_us else peer.ours_to_this)
        return {
            "us": peer.cost_us,
            "ratio": 1 / ratio.median if ratio and ratio.median > 0 else None,
            "why": peer.failed or peer.note,
        }

    return {
        "suite": results.suite,
        "label": entry.label,
        "op": entry.op,
        "direction": entry.direction,
        "dtype": entry.dtypes.get("x") or next(iter(entry.dtypes.values())),
        "place": str(entry.place),
        "device": str(results.device.get("name", "unknown device")),
        "us": entry.ours.cost_us,
        "peers": {name: told(peer) for name, peer in entry.peers.items()},
    }


def _line(line: RoofLine) -> dict[str, Any]:
    points = [{f.name: getattr(p, f.name) for f in fields(p)} for p in line.points]
    plain = {name: getattr(line, name) for name in ROOF_FIELDS}
    return plain | {"label": line.label, "points": points, "middle": [list(pair) for pair in line.middle()]}


def _final_points(finals: Iterable[Record]) -> Iterable[tuple[tuple[Any, ...], tuple[Any, ...], RoofPoint]]:
    for record in finals:
        us, gb_per_s, percent = record.cost_us, record.gb_per_s, record.percent_of_roof
        if not record.measured or us is None or gb_per_s is None or percent is None:
            continue
        key, device = record.problem, str(record.device.get("name", "unknown device"))
        point = RoofPoint(
            rows=key.rows,
            cols=key.cols,
            us=us,
            gb_per_s=gb_per_s,
            percent_of_roof=percent,
            confirmed=True,
            schedule=str(record.schedule),
        )
        yield key.slot(), (key.op, key.direction, dtype_of(key), str(record.place), device), point


def _series_points(series: Iterable[Series]) -> Iterable[tuple[tuple[Any, ...], tuple[Any, ...], RoofPoint]]:
    for one in series:
        if not one.timed or not one.roof_us or not one.bytes:
            continue
        schedule, us = min(one.timed, key=lambda pair: pair[1])
        key, device = one.problem, str(one.device.get("name", "unknown device"))
        point = RoofPoint(
            rows=key.rows,
            cols=key.cols,
            us=us,
            gb_per_s=one.bytes / us / 1e3,
            percent_of_roof=100 * one.roof_us / us,
            confirmed=False,
            schedule=str(schedule),
        )
        yield key.slot(), (key.op, key.direction, dtype_of(key), str(one.place), device), point


def _environments(evidence: Evidence) -> list[dict[str, Any]]:
    """The distinct devices and versions, with how many series and final records are of each."""
    found: dict[str, dict[str, Any]] = {}
    everyone: list[Series | Record] = [*evidence.series, *evidence.finals]
    for one in everyone:
        device, versions = dict(one.device), dict(one.versions)
        place = found.setdefault(repr((device, versions)), {"device": device, "versions": versions})
        kind = "series" if isinstance(one, Series) else "finals"
        place[kind] = place.get(kind, 0) + 1
        place["created"] = sorted({*place.get("created", ()), one.created} - {""})
    for place in found.values():
        place["created"] = place["created"][:1] + place["created"][-1:]
    return list(found.values())


def _measures(finals: Iterable[Record]) -> list[dict[str, Any]]:
    """The distinct measurement policies of the final records."""
    distinct = {repr(r.search["policy"]): dict(r.search["policy"]) for r in finals if r.search.get("policy")}
    return list(distinct.values())


def _finite(value: Any) -> Any:
    """Floats to six significant digits; JSON has no NaN and no infinity."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list) else value

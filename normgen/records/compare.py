"""Two sets of results against each other: faster, slower or the same, by the intervals of their prices.

What was timed alone has no price: there it is the times. Results of different places are of different problems.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgen.errors import UsageError
from normgen.files.decoded import parse_json
from normgen.files.plain import plain
from normgen.records.record import Record
from normgen.records.verified import Verified
from normgen.records.winners import kept_of

FASTER, SLOWER, SAME, UNMEASURED = "FASTER", "SLOWER", "SAME", "UNMEASURED"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One problem in both files: µs and `ratio`, after over before, are of prices (alone, of times).

    chain_ratio   the same of T; None alone
    before_verified, after_verified   where and how the kernels were verified; None where the record does not say
    """

    problem: str
    verdict: str
    before_us: float
    after_us: float
    ratio: float
    chain_ratio: float | None = None
    before_verified: Verified | None = None
    after_verified: Verified | None = None


@dataclass(frozen=True, kw_only=True)
class RecordComparison:
    pairs: tuple[Pair, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    def count(self, verdict: str) -> int:
        return sum(pair.verdict == verdict for pair in self.pairs)

    @property
    def slower(self) -> int:
        return self.count(SLOWER)

    def as_dict(self) -> dict[str, Any]:
        counts = {name.lower(): self.count(name) for name in (FASTER, SLOWER, SAME, UNMEASURED)}
        only = {"only_before": list(self.only_before), "only_after": list(self.only_after)}
        return {**counts, **only, "problems": plain(self.pairs)}


def compare_files(before: Path, after: Path) -> RecordComparison:
    """Errors: UsageError for a file without usable records, or two files that share no problem."""
    first, second = _best(read_results(before), before), _best(read_results(after), after)
    shared = [key for key in first if key in second]
    if not shared:
        received = f"{len(first)} problems in {before}, {len(second)} in {after}"
        hint = "operation, shape, dtypes, layout, place and GPU model must agree"
        raise UsageError("the files share no problem", received=received, hint=hint)
    return RecordComparison(
        pairs=tuple(judge(key, first[key], second[key]) for key in shared),
        only_before=tuple(key for key in first if key not in second),
        only_after=tuple(key for key in second if key not in first),
    )


def judge(problem: str, before: Record, after: Record) -> Pair:
    """FASTER or SLOWER where the 95 % intervals do not meet, else SAME; UNMEASURED without two measurements."""
    old, new = before.cost_interval, after.cost_interval
    old_us, new_us = before.cost_us, after.cost_us
    assert old_us is not None
    assert new_us is not None
    if old is None or new is None:
        verdict = UNMEASURED
    elif new[1] < old[0]:
        verdict = FASTER
    else:
        verdict = SLOWER if new[0] > old[1] else SAME
    chains = before.chain_us and after.chain_us and before.us and after.us
    return Pair(
        problem=problem,
        verdict=verdict,
        before_us=old_us,
        after_us=new_us,
        ratio=round(new_us / old_us, 4),
        chain_ratio=round(after.us / before.us, 4) if chains and before.us and after.us else None,
        before_verified=before.verified,
        after_verified=after.verified,
    )


def read_results(path: Path) -> list[Record]:
    """The records of a file: one a line, or the best ones of what `tune --json` printed."""
    try:
        data = parse_json(path.read_bytes())
    except ValueError:  # several lines are no JSON text
        data = None
    if not isinstance(data, dict) or "schema" in data:
        return list(kept_of(path))
    jobs = data.get("jobs")
    parts = [data, *(jobs if isinstance(jobs, list) else ())]
    best = [part["best"] for part in parts if isinstance(part, dict) and part.get("best")]
    return list(kept_of(path, lines="\n".join(map(json.dumps, best)).encode()))


def _best(records: Iterable[Record], path: Path) -> Mapping[str, Record]:
    """The fastest usable record of each problem, measured ones first."""
    best: dict[str, Record] = {}
    for record in records:
        if record.cost_us is None or not record.is_usable:
            continue
        name = _problem_name(record)
        old = best.get(name)
        if old is None or _rank(record) < _rank(old):
            best[name] = record
    if not best:
        raise UsageError("a file with at least one usable result", received=str(path))
    return best


def _rank(record: Record) -> tuple[bool, float]:
    return not record.measured, record.cost_us or float("inf")


def _problem_name(record: Record) -> str:
    key = record.problem
    tensors = " ".join(f"{name}:{dtype}" for name, dtype in key.dtypes)
    layout = [f"pitch {key.pitch}"] if not key.packed else []
    layout += [f"inner {key.inner}"] if key.inner else []
    layout += [f"stride {key.col_stride}"] if key.col_stride != 1 else []
    layout += [f"batches {key.batches}"] if key.batches != 1 else []
    layout += [f"align {key.align}"] if key.align != 16 else []
    layout += key.flags
    layout += [f"{written} in place of {read}" for written, read in key.in_place]
    layout += [f"{name} {order}" for name, order in key.layout]
    head = f"{key.op} {key.direction} {key.rows}x{key.cols} {tensors}"
    return " ".join([head, *layout, str(record.place), "on", str(record.device.get("name", "?"))])

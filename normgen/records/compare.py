"""Two sets of results against each other: faster, slower or the same, by the intervals of their medians."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from normgen.errors import UsageError
from normgen.files.decoded import parse_json
from normgen.records.record import Record, from_dict
from normgen.records.winners import read_whole

FASTER, SLOWER, SAME, UNMEASURED = "FASTER", "SLOWER", "SAME", "UNMEASURED"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One problem in both files; `ratio` is after over before, of medians."""

    problem: str
    verdict: str
    before_us: float
    after_us: float
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
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
        return {**counts, **only, "problems": [asdict(pair) for pair in self.pairs]}


def compare_files(before: Path, after: Path) -> Comparison:
    """Errors: UsageError for a file without usable records, or two files that share no problem."""
    first, second = _best(read_results(before), before), _best(read_results(after), after)
    shared = [key for key in first if key in second]
    if not shared:
        received = f"{len(first)} problems in {before}, {len(second)} in {after}"
        hint = "operation, shape, dtypes, layout, cache objective and GPU model must agree"
        raise UsageError("the files share no problem", received=received, hint=hint)
    return Comparison(
        pairs=tuple(judge(key, first[key], second[key]) for key in shared),
        only_before=tuple(key for key in first if key not in second),
        only_after=tuple(key for key in second if key not in first),
    )


def judge(problem: str, before: Record, after: Record) -> Pair:
    """FASTER or SLOWER where the 95 % intervals do not meet, else SAME; UNMEASURED without two measurements."""
    assert before.us is not None
    assert after.us is not None
    old, new = before.times_us, after.times_us
    if old is None or new is None:
        verdict = UNMEASURED
    elif new.high < old.low:
        verdict = FASTER
    else:
        verdict = SLOWER if new.low > old.high else SAME
    ratio = after.us / before.us
    return Pair(problem=problem, verdict=verdict, before_us=before.us, after_us=after.us, ratio=round(ratio, 4))


def read_results(path: Path) -> list[Record]:
    """The records of a file: one a line, or the best ones of what `tune --json` printed."""
    try:
        data = parse_json(path.read_bytes())
    except ValueError:  # several lines are no JSON text
        data = None
    if not isinstance(data, dict) or "schema" in data:
        return list(read_whole(path))
    try:
        found = [data, *data.get("jobs", [])]
        return [from_dict(part["best"]) for part in found if part.get("best")]
    except (ValueError, AttributeError, TypeError) as error:
        hint = "a file of records, or what `normgen tune --json` printed"
        raise UsageError("not a file of results", received=f"{path}: {error}", hint=hint) from None


def _best(records: Iterable[Record], path: Path) -> Mapping[str, Record]:
    """The fastest usable record of each problem, measured ones first."""
    best: dict[str, Record] = {}
    for record in records:
        if record.us is None or not record.outcome.is_usable:
            continue
        name = _problem_name(record)
        old = best.get(name)
        if old is None or _rank(record) < _rank(old):
            best[name] = record
    if not best:
        raise UsageError("a file with at least one usable result", received=str(path))
    return best


def _rank(record: Record) -> tuple[bool, float]:
    return not record.measured, record.us or float("inf")


def _problem_name(record: Record) -> str:
    key = record.problem
    tensors = " ".join(f"{name}:{dtype}" for name, dtype in key.dtypes)
    layout = [f"pitch {key.pitch}"] if key.pitch != key.cols else []
    layout += [f"align {key.align}"] if key.align != 16 else []
    layout += ["any cols"] if key.any_cols else []
    layout += ["accumulate"] if key.accumulate else []
    layout += ["deterministic"] if key.deterministic else []
    layout += ["stable parameters"] if key.stable_parameters else []
    head = f"{key.op} {key.direction} {key.rows}x{key.cols} {tensors}"
    return " ".join([head, *layout, record.cache.value, "on", str(record.device.get("name", "?"))])

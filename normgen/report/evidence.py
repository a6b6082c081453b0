"""What files of records and sweeps hold, as a report needs it: candidates in order, and final records.

A record whose `search` sums one up is a final one: the winner a run ended with. All others are candidates; those of
one file, problem, place, device, seed and command form a series, in the order of the file. A sweep
is a series too, whose order means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from normgen.bench.result import Results
from normgen.errors import NothingValidError, UsageError
from normgen.files.shipped import shipped
from normgen.problem.question import Question
from normgen.records.lines import told
from normgen.records.place import Place
from normgen.records.record import Outcome, Record
from normgen.records.winners import read as read_records
from normgen.records.winners import record_folders, state_folder
from normgen.schedule.schedule import Schedule
from normgen.studies.sweep_file import Sweep, is_sweep, read_sweep
from normgen.trials.file import peeked, read
from normgen.trials.kept import NAME as TRIALS
from normgen.trials.trial import Trial, trial_of

SEARCH, SWEEP = "search", "sweep"


@dataclass(frozen=True, kw_only=True)
class Series:
    """The candidates of one search in the order of evaluation, or the points of a sweep.

    Every µs is a cost: the price of what was timed in place, the time of what was timed alone or predicted.
    """

    problem: Question
    place: Place
    device: Mapping[str, Any] = field(hash=False)
    versions: Mapping[str, str] = field(hash=False)
    trials: tuple[Trial, ...] = field(repr=False)
    source: str
    kind: str = SEARCH
    seed: int = 0
    command: str = ""
    created: str = ""
    roof_us: float | None = None
    default_us: float | None = None
    bytes: int = 0

    @property
    def measured(self) -> bool:
        return any(t.measured for t in self.trials)

    def has_figure(self, trial: Trial) -> bool:
        """Whether a trial counts: one that a GPU timed, or, in a run that no GPU timed, one that was predicted."""
        return trial.cost_us is not None and trial.outcome is (Outcome.OK if self.measured else Outcome.PREDICTED)

    @property
    def timed(self) -> tuple[tuple[Schedule, float], ...]:
        """(schedule, µs) of the candidates that a GPU timed."""
        return tuple((t.schedule, us) for t in self.trials if t.outcome is Outcome.OK and (us := t.cost_us) is not None)

    @property
    def best_us(self) -> float | None:
        return min((us for _, us in self.timed), default=None)

    def best_so_far(self) -> tuple[float | None, ...]:
        """The shortest time after each evaluation: [trials]; None before the first usable one. Of a run that no GPU
        timed, the shortest predicted one.
        """
        best: list[float | None] = []
        lowest: float | None = None
        for trial in self.trials:
            if self.has_figure(trial) and (us := trial.cost_us) is not None:
                lowest = us if lowest is None else min(lowest, us)
            best.append(lowest)
        return tuple(best)


@dataclass(frozen=True, kw_only=True)
class EvidenceFile:
    """A file that was read, and the lines of it that are no records."""

    path: str
    found: int
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything a report is made of."""

    series: tuple[Series, ...]
    finals: tuple[Record, ...]
    sources: tuple[EvidenceFile, ...]
    benches: tuple[Results, ...] = ()


def gather(files: Sequence[Path]) -> Evidence:
    """Read the given files, or without any this user's runs and winners, and what ships: winners, sweeps, benches.

    Raises UsageError for a file without any record that is no sweep and no bench, NothingValidError when there is
    nothing at all.
    """
    chosen = list(files) or known_files()
    if not chosen:
        hint = "run normgen tune first, or name record files"
        raise NothingValidError("there is no record to report", received=str(state_folder()), hint=hint)
    series: list[Series] = []
    finals: list[Record] = []
    sources: list[EvidenceFile] = []
    benches: list[Results] = []
    for path in chosen:
        if is_bench(path):
            benches.append(read(Results, path))
            sources.append(EvidenceFile(path=str(path), found=len(benches[-1].entries)))
            continue
        if is_sweep(path):
            swept = series_of_sweep(read_sweep(path), source=str(path))
            series.append(swept)
            sources.append(EvidenceFile(path=str(path), found=len(swept.trials)))
            continue
        reading = read_records(path)
        if files and not reading.records:
            why = str(reading.damaged[0]) if reading.damaged else f"{path}: empty"
            raise UsageError("a report is made from files of records", received=why)
        told(reading.damaged)
        candidates = [r for r in reading.records if not is_final(r)]
        finals += [r for r in reading.records if is_final(r)]
        series += series_of(candidates, source=str(path))
        damaged = tuple(str(line) for line in reading.damaged)
        sources.append(EvidenceFile(path=str(path), found=len(reading.records), damaged=damaged))
    unique = tuple({r.line(): r for r in finals}.values())
    return Evidence(
        series=tuple(_with_default(s, unique) for s in series),
        finals=unique,
        sources=tuple(sources),
        benches=tuple(benches),
    )


def known_files() -> list[Path]:
    """This user's run files, oldest first, then all files of winners, the sweeps that ship, and a clone's benches."""
    runs = sorted(path for path in (state_folder() / "runs").glob("*/*.jsonl") if path.name != TRIALS)
    winners = [path for folder in record_folders() for path in sorted(folder.glob("*.jsonl"))]
    generated = shipped("generated")
    return [*runs, *winners, *sorted(generated.glob("sweeps/*.xz")), *sorted(generated.glob("evidence/bench_*.json"))]


def is_bench(path: Path) -> bool:
    """Whether a file is what `normgen bench SUITE --json` writes."""
    return {"suite", "summary"} <= peeked(path).keys()


def is_final(record: Record) -> bool:
    """The record sums its search up: it is what a run ended with. A candidate says how it was chosen and timed."""
    return "trials" in record.search


def series_of(candidates: Iterable[Record], *, source: str) -> list[Series]:
    """The candidates of one file, sorted out by the run that made them."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in candidates:
        groups.setdefault((_run_key(record), record.command), []).append(record)
    return [_series(records, source) for records in groups.values()]


def _series(records: Sequence[Record], source: str) -> Series:
    first = records[0]
    roofs = [r.roof_us for r in records if r.roof_us is not None]
    shared = ("problem", "place", "device", "versions", "seed", "command", "created", "bytes")
    return Series(
        **{name: getattr(first, name) for name in shared},
        trials=tuple(map(trial_of, records)),
        source=source,
        roof_us=roofs[-1] if roofs else None,
    )


def series_of_sweep(sweep: Sweep, *, source: str) -> Series:
    """The points of a sweep; the default's time is that of its point."""
    base_us = sweep.chain_us or 0.0
    trials = tuple(
        replace(point, base_us=base_us, reason=f"same code as {point.twin}" if point.twin else "")
        for point in sweep.points
    )
    return Series(
        **{name: getattr(sweep, name) for name in ("place", "device", "versions", "roof_us", "bytes")},
        problem=Question.of(sweep.problem),
        trials=trials,
        source=source,
        kind=SWEEP,
        seed=sweep.options.get("seed", 0),
        default_us=next((t.cost_us for t in trials if t.schedule == sweep.default), None),
    )


def _with_default(series: Series, finals: Sequence[Record]) -> Series:
    """The default's time of the same run, which only the final record of a search states."""
    if series.kind != SEARCH:
        return series
    for record in finals:
        if record.default_cost_us is not None and _run_key(record) == _run_key(series):
            return replace(series, default_us=record.default_cost_us)
    return series


def _run_key(one: Record | Series) -> tuple[Any, ...]:
    return one.problem, one.place, one.device.get("name"), one.seed

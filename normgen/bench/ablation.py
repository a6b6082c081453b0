"""What each technique is worth: tuned kernels against the best that is found without it, in one interleaved run.

The JSON object (`Ablation.as_dict`), prices in µs (alone: times), ratios formed round by round:

schema, source, device, versions, options, started, seconds, finished, note      as in `trials.head`
lines                one object a technique and shape:
  technique          as in `tuning.techniques`
  label              the shape, as a suite's entry
  with_us            of the tuned kernel
  without_us         of the fastest right kernel without the technique; null: none was legal and right
  gain               {median, low, high}: without over with; above 1 the technique wins
  schedule, changed  the tuned schedule, and the knobs in which the other one differs (`name=value`)
  tried              how many kernels without it were timed
unused               techniques that no record of the source uses
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from normgen.device import Device
from normgen.errors import NothingValidError
from normgen.records.questions import problem_of
from normgen.records.record import Record
from normgen.records.statistics import Ratio
from normgen.records.winners import kept_of, lookup
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.studies.techniques import Technique, all_techniques, changes, without
from normgen.suites.suite import Entry, load_suite
from normgen.text import figure, table
from normgen.trials.contest import Contest, Venue, hold
from normgen.trials.head import Run
from normgen.trials.run import How, run
from normgen.tuning.progress import Progress

OWN = "tuned"


@dataclass(frozen=True, kw_only=True)
class AblationCase:
    """A tuned kernel, and those of its techniques that it is to speak for."""

    entry: Entry
    schedule: Schedule
    techniques: tuple[Technique, ...]

    @property
    def label(self) -> str:
        return self.entry.label

    key = label


@dataclass(frozen=True, kw_only=True)
class Line:
    """One technique at one shape; see the module's docstring."""

    technique: str
    label: str
    with_us: float | None
    without_us: float | None
    gain: Ratio | None
    schedule: str
    changed: str
    tried: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Ablation(Run):
    """A whole run."""

    READ = (1, 2, 3)
    TRIALS = "lines"
    WRITER = "`normgen bench --ablation ... --json`"

    source: str
    lines: tuple[Line, ...] = ()
    unused: tuple[str, ...] = ()


def tuned_entries(source: str, device: Device, folders: Sequence[Path]) -> list[tuple[Entry, Schedule]]:
    """The measured winners of a file of records, or of a suite's entries; a suite's untuned entries are left out.

    Raises NothingValidError when there is none for this GPU.
    """
    found = _of_file(Path(source), device) if source.endswith(".jsonl") else _of_suite(source, device, folders)
    if not found:
        raise NothingValidError("an ablation begins with measured records of this GPU", received=source)
    return found


def _of_file(file: Path, device: Device) -> list[tuple[Entry, Schedule]]:
    mine = [r for r in kept_of(file) if r.measured and r.device.get("name") == device.name]
    return [(_entry_of(record), record.schedule) for record in mine]


def _entry_of(record: Record) -> Entry:
    key = record.problem
    problem = problem_of(key, load(key.op))
    return Entry(op=key.op, shape=f"{key.rows}x{key.cols}", problem=problem, place=record.place)


def _of_suite(name: str, device: Device, folders: Sequence[Path]) -> list[tuple[Entry, Schedule]]:
    found = [(e, lookup(e.problem, device, place=e.place, folders=folders)) for e in load_suite(name).entries]
    return [(e, f.record.schedule) for e, f in found if f.record and f.exact and f.record.measured]


def cases_of(
    winners: Sequence[tuple[Entry, Schedule]], *, each: int, most: int
) -> tuple[list[AblationCase], tuple[str, ...]]:
    """At most `each` shapes a technique and `most` in all, and the names of the techniques that nobody uses.

    Rare techniques choose first, then shapes that were chosen already, then those that move the most bytes.
    """
    techniques = all_techniques()
    users = {t.name: [i for i, (e, s) in enumerate(winners) if t.is_in(s, e.problem)] for t in techniques}
    order = sorted((t for t in techniques if users[t.name]), key=lambda t: len(users[t.name]))
    chosen: dict[int, list[Technique]] = {}
    for technique in order:
        sizes = {i: winners[i][0].problem.compulsory_bytes for i in users[technique.name]}
        ranked = sorted(sizes, key=lambda i: (i not in chosen, -sizes[i]))
        for i in ranked[:each]:
            if i in chosen or len(chosen) < most:
                chosen.setdefault(i, []).append(technique)
    cases = [
        AblationCase(entry=winners[i][0], schedule=winners[i][1], techniques=tuple(ts))
        for i, ts in sorted(chosen.items())
    ]
    return cases, tuple(t.name for t in techniques if not users[t.name])


def run_ablation(
    source: str,
    cases: Sequence[AblationCase],
    unused: tuple[str, ...],
    venue: Venue,
    *,
    tried: int,
    progress: Progress,
    **how: Unpack[How],
) -> Ablation:
    """Time every case.

    tried     kernels without a technique, for each technique of a case
    """
    opened = Ablation(**venue.head(cases=len(cases), tried=tried), source=Path(source).name, unused=unused)
    return run(
        opened,
        cases,
        lambda case: measure_case(case, venue, tried=tried, note=progress.note),
        progress=progress,
        words=lambda lines: ", ".join(line.technique for line in lines),
        **how,
    )


def measure_case(case: AblationCase, venue: Venue, *, tried: int, note: Callable[[str], None]) -> list[Line]:
    """One interleaved run with the tuned kernel and every other one of all the case's techniques."""
    problem, own = case.entry.problem, case.schedule
    others = {t.name: without(t, own, problem, venue.facts, count=tried) for t in case.techniques}
    schedules = {OWN: own} | {s.key: s for found in others.values() for s in found}
    contest = hold(problem, case.entry.place, schedules, venue, note=note)
    return [_line(case, name, found, contest) for name, found in others.items()]


def _line(case: AblationCase, technique: str, others: Sequence[Schedule], contest: Contest) -> Line:
    times = {s: us for s in others if (us := contest.cost_us(s.key)) is not None}
    best = min(times, key=lambda s: times[s], default=None)
    failed = contest.failed.get(OWN) or ("" if best else _why_none(others, contest))
    return Line(
        technique=technique,
        label=case.entry.label,
        with_us=contest.cost_us(OWN),
        without_us=times[best] if best else None,
        gain=contest.price_ratio(best.key, OWN) if best else None,
        schedule=str(case.schedule),
        changed=" ".join(f"{name}={getattr(best, name)}" for name in changes(best, case.schedule)) if best else "",
        tried=len(times),
        note=failed,
    )


def _why_none(others: Sequence[Schedule], contest: Contest) -> str:
    if not others:
        return "no schedule near it is legal without"
    return "; ".join(dict.fromkeys(contest.failed[s.key] for s in others))


def ablation_text(found: Ablation) -> str:
    """A line a technique and shape, then what is not used and where each technique helped."""
    order = {t.name: i for i, t in enumerate(all_techniques())}
    lines = sorted(found.lines, key=lambda line: (order.get(line.technique, len(order)), line.label))
    header = ["technique", "shape", "with µs", "without µs", "gain", "without it"]
    text = [table(header, [_row(line) for line in lines]), ""]
    counts = Counter(line.technique for line in lines if line.gain and line.gain.low > 1)
    helped = [f"{name} {counts[name]} of {n}" for name, n in Counter(line.technique for line in lines).items()]
    text.append(f"beyond the noise: {', '.join(helped) or 'none'}")
    text += [f"in no winner: {', '.join(found.unused)}"] if found.unused else []
    text += [f"NOT FINISHED: {found.note}"] if not found.finished else []
    return "\n".join(text)


def _row(line: Line) -> list[str]:
    gain = f"{line.gain.median:.3f} [{line.gain.low:.3f}, {line.gain.high:.3f}]" if line.gain else "-"
    instead = line.changed or line.note
    return [line.technique, line.label, figure(line.with_us), figure(line.without_us), gain, instead]

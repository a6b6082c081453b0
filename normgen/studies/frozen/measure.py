"""Measure frozen problems on a GPU, one after another, into a file that grows: each is tuned and then swept.

The sweep times the search's points and random ones in one run, the fastest of both again at its end: what the search
found and what it missed stand beside each other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from normgen.device import device_from
from normgen.errors import NormgenError, NothingValidError, UsageError
from normgen.measure.faults import DeviceLostError
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import DEFAULT_PLACE
from normgen.records.winners import read
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.studies.frozen.draw import problems
from normgen.studies.frozen.file import Frozen
from normgen.studies.frozen.first import Chooser
from normgen.studies.replay import swept_problem
from normgen.studies.sweep import sweep_on_gpu
from normgen.studies.sweep_file import Sweep, key_of
from normgen.trials.file import resumed
from normgen.trials.head import INTERRUPTED, reason_of
from normgen.trials.run import RunProgress, run
from normgen.tuning.progress import Silent
from normgen.tuning.tuner import tune

TRIALS, BUDGET_S = 64, 10.0  # of a tune
RANDOM = 32
FIRST = 8  # choices of a list that are timed, and of the file's fastest that are timed with them


@dataclass(frozen=True, kw_only=True)
class Case:
    """A problem to measure: its number in the draw, and what `tune` is asked, or the sweep that lacks choices."""

    number: int
    problem: Problem
    asked: Mapping[str, Any]
    before: Sweep | None = None
    lacks: tuple[Schedule, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.number:03d} {self.problem}"

    @property
    def key(self) -> str:
        return key_of(self.problem.question.as_dict())


def drawn(done: Iterable[Sweep] = ()) -> list[Case]:
    """The drawn problems but those that were swept."""
    known, found = {sweep.key for sweep in done}, []
    for number, asked in enumerate(problems()):
        question: dict[str, Any] = {name: value for name, value in asked.items() if name != "op"}
        found.append(Case(number=number, problem=problem_for(load(asked["op"]), **question), asked=asked))
    return [case for case in found if case.key not in known]


def lacking(sweeps: Iterable[Sweep], choose: Chooser) -> list[Case]:
    """The sweeps that do not have every one of a chooser's first few."""
    found = []
    for sweep in sweeps:
        problem, known = swept_problem(sweep.problem), {p.schedule for p in sweep.points}
        lacks = tuple(s for s in choose(problem, device_from(sweep.device))[:FIRST] if s not in known)
        if lacks:
            number = sweep.options.get("seed", 0)
            found.append(Case(number=number, problem=problem, asked={}, before=sweep, lacks=lacks))
    return found


Swept = Callable[..., Sweep]  # as `sweep_on_gpu`


def measured(case: Case, *, device: int, swept: Swept = sweep_on_gpu) -> Sweep:
    """Tune a drawn problem from nothing known, and sweep what the search tried beside random schedules."""
    result = tune(**case.asked, device=device, trials=TRIALS, budget_s=BUDGET_S, seed=0, reuse=False)
    if result.interrupted:
        raise KeyboardInterrupt
    tried = [record.schedule for record in read(result.candidates_path).records]
    return _sweep(case, dict.fromkeys(tried, "search"), limit=RANDOM, device=device, swept=swept)


def completed(case: Case, *, device: int, swept: Swept = sweep_on_gpu) -> Sweep:
    """The sweep that lacked choices with them in it, timed in one run with its default and its fastest.

    Their times are those of the run by what the default took in the sweep over what it took in the run.
    """
    before = case.before
    assert before is not None, "what lacks choices was swept"
    fastest = sorted((p for p in before.points if p.us is not None), key=lambda p: p.us or 0.0)[:FIRST]
    asked = dict.fromkeys([before.default, *(p.schedule for p in fastest), *case.lacks], "first")
    again = _sweep(case, asked, limit=0, device=device, swept=swept)
    then, now = (next(p.us for p in sweep.points if p.schedule == before.default) for sweep in (before, again))
    if then is None or now is None:
        raise NothingValidError("times of two runs are compared by the default's", received=f"{then} and {now} us")
    added = [
        replace(p, chosen="first", us=None if p.us is None else p.us * then / now, twin=None)
        for p in again.points
        if p.schedule in case.lacks
    ]
    return before.with_trials([*before.points, *added])


def _sweep(case: Case, first: Mapping[Schedule, str], *, limit: int, device: int, swept: Swept) -> Sweep:
    with tempfile.TemporaryDirectory(prefix="normgen-frozen-") as folder:
        path = Path(folder) / "sweep.jsonl"
        found = swept(
            case.problem, place=DEFAULT_PLACE, path=path, limit=limit, first=first, index=device, seed=case.number,
            progress=Silent(),
        )  # fmt: skip
    if found.note == INTERRUPTED:
        raise KeyboardInterrupt
    if not found.finished:
        raise DeviceLostError("the device must last for a sweep", received=found.note)
    return found


def measure(
    opened: Frozen,
    path: Path,
    cases: Sequence[Case],
    one: Callable[[Case], Sweep],
    *,
    limit_s: float | None = None,
    progress: RunProgress,
) -> Frozen:
    """Every case by `one`, but those that the file holds already, into the file as they come; the whole run.

    `opened` has the card and its versions. A problem that cannot be measured is told and left out. Ctrl-C, the limit
    and a lost device end the run with what there is. Raises UsageError for a file, or sweeps, of another card.
    """
    if other := {str(case.before.device["name"]) for case in cases if case.before} - {opened.device["name"]}:
        rule = f"choices are timed on the card of their sweeps, {', '.join(sorted(other))}"
        raise UsageError(rule, received=str(opened.device["name"]))

    def told(case: Case) -> list[Sweep]:
        try:
            return [one(case)]
        except DeviceLostError:
            raise
        except NormgenError as error:
            progress.note(f"{case.label}: {reason_of(error)}")
            return []

    def words(found: Sequence[Sweep]) -> str:
        return "".join(f"{len(sweep.points)} points" for sweep in found)

    start = opened.going_on(resumed(Frozen, path, is_strict=True))
    return run(start, cases, told, progress=progress, words=words, path=path, limit_s=limit_s)

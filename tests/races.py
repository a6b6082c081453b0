"""Schedules of one problem timed against each other on a GPU, of which what ships keeps ratios of their chains.

`generated/trials/h100_h200.jsonl.xz`, where a run is one of
    race                                       schedules that somebody picked
    tune of a random shape                     all that the tune timed, over the default of that day
    rule, default and tune of a random shape   over the tuned schedule
    tune beside the record of an H200          the H200's, the default and the tuned one
between plain kernels, each with its input just written.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from normgen.device import target
from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.studies.replay import swept_problem
from normgen.trials.file import read
from normgen.trials.kept import Trials
from normgen.trials.trial import Trial

TIMED = Path(__file__).parents[1] / "generated" / "trials" / "h100_h200.jsonl.xz"


@dataclass(frozen=True, kw_only=True)
class Race:
    """`tuned`: the winner of a tune beside the record of an H200."""

    problem: Problem
    chains: Mapping[Schedule, float]
    tuned: Schedule | None = None

    def behind(self, schedule: Schedule) -> float | None:
        """How much longer the chain takes than with the best that was timed; None of a schedule that was not."""
        chain = self.chains.get(schedule)
        return None if chain is None else chain / min(self.chains.values())


@lru_cache
def _timed() -> tuple[Trial, ...]:
    return read(Trials, TIMED, is_strict=True).trials


def races(gpu: str) -> list[Race]:
    there = [
        t for t in _timed() if t.ratio is not None and t.device is not None and t.device["name"] == target(gpu).name
    ]
    return [_race(run, tuple(trials)) for run, trials in itertools.groupby(there, key=lambda t: t.run)]


def _race(run: str, trials: tuple[Trial, ...]) -> Race:
    assert trials[0].question is not None
    tuned = [t.schedule for t in trials if t.chosen == "tuned" and run.startswith("tune beside")]
    return Race(
        problem=swept_problem(trials[0].question),
        chains={t.schedule: t.ratio for t in trials if t.ratio is not None},
        tuned=tuned[0] if tuned else None,
    )

"""How good the cost model's word alone is: its first choice on problems whose times are known."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normgen.cost.constants import Constants
from normgen.cost.model import terms
from normgen.files.plain import plain
from normgen.schedule.schedule import Schedule
from normgen.studies.fit import TimedProblem


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The usable schedule that the model calls fastest, against the fastest of a problem's measured ones.

    ratio      µs of the first choice over µs of the optimum
    rank       how many schedules the model calls faster than the optimum
    predicted  the model's µs of its first choice
    """

    problem: str
    place: str
    schedules: int
    first: Schedule
    first_us: float
    predicted_us: float
    optimum: Schedule
    optimum_us: float
    rank: int

    ALSO = ("ratio",)

    @property
    def ratio(self) -> float:
        return round(self.first_us / self.optimum_us, 4)


def first_choice(measured: TimedProblem, constants: Constants | None = None) -> Choice:
    """The model's first choice, of equal predictions the plainest. Constants: those that ship for the GPU."""
    hot, schedules = measured.place.is_hot, measured.schedules
    told = terms(measured.problem, schedules, measured.device, hot=hot, constants=constants)["us"].tolist()
    at = min(range(len(told)), key=lambda i: (told[i], len(str(measured.points[i][0])), i))
    best = min(range(len(told)), key=lambda i: measured.points[i][1])
    return Choice(
        problem=str(measured.problem),
        place=str(measured.place),
        schedules=len(told),
        first=measured.points[at][0],
        first_us=measured.points[at][1],
        predicted_us=told[at],
        optimum=measured.points[best][0],
        optimum_us=measured.points[best][1],
        rank=sum(us < told[best] for us in told),
    )


def summary(choices: Sequence[Choice]) -> dict[str, Any]:
    """Median and largest ratio, and each choice: what `normgen calibrate --evaluate --json` prints."""
    ratios = [c.ratio for c in choices]
    figures = {"median": round(statistics.median(ratios), 4), "largest": round(max(ratios), 4)}
    return {**figures, "choices": plain(choices)}


def lines(choices: Sequence[Choice]) -> list[str]:
    """The same for people."""
    shown = []
    for c in choices:
        head = (
            f"{c.ratio:.3f} x  {c.problem} {c.place}: first choice {c.first_us:.4g} us (predicted {c.predicted_us:.4g})"
        )
        shown += [f"{head}, optimum {c.optimum_us:.4g} us, number {c.rank + 1} of {c.schedules}", f"         {c.first}"]
    found = summary(choices)
    return [*shown, f"median {found['median']:.3f} x, largest {found['largest']:.3f} x of {len(choices)} problems"]

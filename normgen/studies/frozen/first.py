"""How good first choices are: a chooser's list for each problem beside the fastest that was ever timed of it.

The measure is the whole chain's time over the best one's; beside it the price's, what the kernel alone adds.
A schedule that was not timed has no ratio: it is named and counted, and no share counts its problem as good. One that
was tried and failed is infinitely far behind.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from normgen.choice.first import first_choices
from normgen.device import Device, device_from
from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.studies.replay import swept_problem
from normgen.studies.sweep_file import Sweep

Chooser = Callable[[Problem, Device], Sequence[Schedule]]
COUNTS = (1, 4, 8, 32)  # of the list's schedules, from its first
NEAR = (1.01, 1.03)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a chooser listed for one problem.

    listed        how many, and `untimed` those among the first 32 that nobody timed, with their places
    chain, price  n -> ratio to the best of the best timed of the first n; None where none of them was timed
    """

    problem: str
    listed: int
    chain: Mapping[int, float | None] = field(hash=False)
    price: Mapping[int, float | None] = field(hash=False)
    untimed: tuple[tuple[int, Schedule], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of one count and one measure: over the problems that have a ratio, and shares of all of them."""

    count: int
    measure: str
    problems: int
    timed: int
    median: float | None
    p95: float | None
    worst: float | None
    within: Mapping[str, float] = field(hash=False)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """A chooser's choices, a problem each, and what sums them up."""

    choices: tuple[Choice, ...]

    ALSO = ("figures", "missing")

    @property
    def missing(self) -> dict[int, int]:
        """n -> how many problems have a schedule among the first n that was not timed."""
        return {n: sum(any(i < n for i, _ in c.untimed) for c in self.choices) for n in self._counts}

    @property
    def figures(self) -> tuple[Figures, ...]:
        return tuple(_figures(self.choices, n, measure) for n in self._counts for measure in ("chain", "price"))

    @property
    def _counts(self) -> tuple[int, ...]:
        """Those that some list is longer than the one before."""
        longest = max((c.listed for c in self.choices), default=0)
        return tuple(n for before, n in zip((0, *COUNTS), COUNTS, strict=False) if longest > before)


def scores(sweeps: Iterable[Sweep], choose: Chooser) -> Scores:
    """What a chooser's lists, best first, are worth on problems that were timed."""
    return Scores(choices=tuple(_choice(sweep, choose) for sweep in sweeps))


def _choice(sweep: Sweep, choose: Chooser) -> Choice:
    problem, base_us, best_us = swept_problem(sweep.problem), sweep.chain_us or 0.0, sweep.optimum.us or 0.0
    listed = list(dict.fromkeys(choose(problem, device_from(sweep.device))))
    us = {p.schedule: math.inf if p.us is None else p.us for p in sweep.points}
    took = [us.get(schedule) for schedule in listed]

    def best(n: int, base_us: float) -> float | None:
        known = [(each - base_us) / (best_us - base_us) for each in took[:n] if each is not None]
        return min(known, default=None)

    return Choice(
        problem=str(problem),
        listed=len(listed),
        chain={n: best(n, 0.0) for n in COUNTS},
        price={n: best(n, base_us) for n in COUNTS},
        untimed=tuple((i, s) for i, s in enumerate(listed[: COUNTS[-1]]) if s not in us),
    )


def _figures(choices: Sequence[Choice], n: int, measure: str) -> Figures:
    ratios = sorted(r for c in choices if (r := getattr(c, measure)[n]) is not None)
    return Figures(
        count=n,
        measure=measure,
        problems=len(choices),
        timed=len(ratios),
        median=statistics.median(ratios) if ratios else None,
        p95=ratios[math.ceil(0.95 * len(ratios)) - 1] if ratios else None,
        worst=ratios[-1] if ratios else None,
        within={f"{near:.2f}": sum(r <= near for r in ratios) / len(choices) for near in NEAR},
    )


def recorded(sweeps: Iterable[Sweep], *chosen: str) -> Chooser:
    """The points that were chosen in one of these ways, in the order of each sweep."""
    lists = {str(swept_problem(s.problem)): [p.schedule for p in s.points if p.chosen in chosen] for s in sweeps}
    return lambda problem, _: lists[str(problem)]


CHOOSERS: Mapping[str, Callable[[Sequence[Sweep]], Chooser]] = {
    "ranker": lambda _: first_choices,
    "search": lambda sweeps: recorded(sweeps, "default", "search"),
    "random": lambda sweeps: recorded(sweeps, "random"),
}

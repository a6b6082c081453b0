"""How much of the spread of the times each knob explains: a one-way analysis of variance per knob.

    share = eta^2 = SS_between / SS_total        (Fisher 1925; Cohen 1988, 8.2)

over the log of the times, because a knob multiplies a time more than it adds to it. SS_total is the sum of squared
distances from the mean of all usable candidates, SS_between that of the level means, each counted as often as the
level occurs. Every knob is looked at alone: shares of knobs that the search moved together overlap and may add up
to more than one, and a search that stays near its best point shows less of a knob than an exhaustive sweep does.

A knob without any effect still explains (levels - 1) / (n - 1) on average: that is `chance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from normgen.records.statistics import median
from normgen.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Level:
    """One value of a knob among the usable candidates."""

    value: Any
    count: int
    best_us: float
    median_us: float


@dataclass(frozen=True, kw_only=True)
class KnobShare:
    """share: of the variance of log time, 0..1; chance: what a knob without effect would show."""

    knob: str
    share: float
    chance: float
    levels: tuple[Level, ...]


def knob_shares(timed: Sequence[tuple[Schedule, float]]) -> tuple[KnobShare, ...]:
    """The share of each knob that varies among (schedule, µs), the largest first; equals by name."""
    if len(timed) < 2:
        return ()
    names = [f.name for f in fields(Schedule)]
    shares = [_share(name, [(getattr(s, name), us) for s, us in timed]) for name in names]
    return tuple(sorted((s for s in shares if len(s.levels) > 1), key=lambda s: (-s.share, s.knob)))


def _share(knob: str, timed: Sequence[tuple[Any, float]]) -> KnobShare:
    groups: dict[Any, list[float]] = {}
    for value, us in timed:
        groups.setdefault(value, []).append(us)
    logs = {value: [math.log(us) for us in times] for value, times in groups.items()}
    n = len(timed)
    mean = math.fsum(x for xs in logs.values() for x in xs) / n
    total = math.fsum((x - mean) ** 2 for xs in logs.values() for x in xs)
    between = math.fsum(len(xs) * (math.fsum(xs) / len(xs) - mean) ** 2 for xs in logs.values())
    levels = tuple(
        Level(value=value, count=len(groups[value]), best_us=min(groups[value]), median_us=median(groups[value]))
        for value in sorted(groups)
    )
    return KnobShare(
        knob=knob,
        share=min(1.0, between / total) if total > 0 else 0.0,
        chance=(len(groups) - 1) / (n - 1),
        levels=levels,
    )

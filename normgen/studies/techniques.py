"""What schedules are made of, one technique at a time, and the best guess of a schedule without one of them.

A technique is a value of a knob other than its plain one. The sizes (threads, rows, vector width, unrolling) are no
techniques: every schedule has some. A knob that gets a new value gets a new technique by itself, with its words in
the table of knobs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from normgen.cost.model import predicted_us
from normgen.device import Device
from normgen.knobs import KNOBS, TABLE
from normgen.pipeline import planned
from normgen.problem.problem import Problem
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule

COUNTED = tuple(k.name for k in TABLE if "" in k.words)  # one technique whatever the number
ALTERNATIVES = ("hold", "columns", "edges")  # no value of theirs is plain: without one means with another
MOST_CHANGES = 4  # knobs that may differ between a schedule and the one without its technique, besides the technique's
ROW_BARRIERS = "wide rows side by side in a block, each with a barrier of its own"


@dataclass(frozen=True, kw_only=True)
class Technique:
    """One of `all_techniques`. `values` of `knob` are the technique; `row_barriers` is the one without such a knob."""

    name: str
    knob: str
    values: tuple[Any, ...]

    @property
    def summary(self) -> str:
        """What the technique does."""
        if self.name == "row_barriers":
            return ROW_BARRIERS
        return KNOBS[self.knob].words[self.name.partition("=")[2]]

    def is_in(self, schedule: Schedule, problem: Problem) -> bool:
        """Whether the schedule uses it; a way of summing columns is used where there are column sums."""
        if self.knob == "columns" and not problem.sums_rows:
            return False
        if self.name == "row_barriers":
            return _has_row_barriers(schedule, problem)
        return getattr(schedule, self.knob) in self.values

    @property
    def instead(self) -> tuple[Any, ...]:
        """The knob's values without the technique: its plain one, or every other."""
        if self.knob in ALTERNATIVES:
            return tuple(v for v in KNOBS[self.knob].values if v not in self.values)
        return (1,) if self.knob == "rows_per_block" else (getattr(Schedule(), self.knob),)


def all_techniques() -> tuple[Technique, ...]:
    """Every technique the knobs know, in the order of the schedule's fields."""
    found: list[Technique] = []
    for name in (f.name for f in fields(Schedule)):
        plain = getattr(Schedule(), name)
        others = tuple(v for v in KNOBS[name].values if v != plain)
        if name in COUNTED:
            found.append(Technique(name=name, knob=name, values=others))
        elif name in ALTERNATIVES:
            found += [Technique(name=f"{name}={v}", knob=name, values=(v,)) for v in KNOBS[name].values if v != "exact"]
        elif not KNOBS[name].is_size:
            found += [Technique(name=f"{name}={v}", knob=name, values=(v,)) for v in others]
    return (*found, Technique(name="row_barriers", knob="rows_per_block", values=KNOBS["rows_per_block"].values[1:]))


def without(
    technique: Technique, schedule: Schedule, problem: Problem, device: Device, *, count: int
) -> tuple[Schedule, ...]:
    """At most `count` legal schedules without the technique: the one with only that changed, then the best predicted.

    These differ in as little as threads, width, where the row waits and what else the knob drags along. Empty when
    nothing near is legal: the problem needs the technique.
    """
    only = [replace(schedule, **{technique.knob: value}) for value in technique.instead]
    legal = [s for s in only if refusal(problem, s, device) is None]
    near = dict.fromkeys(
        s
        for s in _neighbours(technique, schedule)
        if not technique.is_in(s, problem) and refusal(problem, s, device) is None
    )
    ranked = sorted(near, key=lambda s: (predicted_us(problem, s, device), changes(s, schedule), s.key))
    return tuple(itertools.islice(dict.fromkeys((*legal, *ranked)), count))


def changes(a: Schedule, b: Schedule) -> tuple[str, ...]:
    """The knobs in which two schedules differ."""
    return tuple(f.name for f in fields(Schedule) if getattr(a, f.name) != getattr(b, f.name))


def _has_row_barriers(schedule: Schedule, problem: Problem) -> bool:
    """Whether the emitted reduction gives each row its own barrier: the emitter decides for which rows that pays."""
    return planned(problem, schedule).waits_by_row


def _neighbours(technique: Technique, own: Schedule) -> Iterator[Schedule]:
    """Schedules without the technique in which up to MOST_CHANGES other knobs differ, legal or not."""
    companions: dict[str, Sequence[Any]] = {
        "threads_per_row": KNOBS["threads_per_row"].values,
        "vector": [v for v in KNOBS["vector"].values if v <= own.vector],
        "hold": tuple(dict.fromkeys((own.hold, "registers", "shared", "reload"))),
        "edges": tuple(dict.fromkeys((own.edges, "exact", "masked"))),
        "unroll": tuple(dict.fromkeys((own.unroll, 0, 1))),
        technique.knob: technique.instead,
    }
    plain = {"persistent": 0, "stages": 1, "params": "late"}
    atomic = {**plain, "columns": "atomic", "dependent_launch": "off"}
    loops: tuple[dict[str, Any], ...] = ({}, {"stages": 1}, plain, atomic, {"dependent_launch": "off"})
    for values in itertools.product(*companions.values()):
        knobs = dict(zip(companions, values, strict=True))
        for loop in loops:
            wanted = {**loop, **knobs}
            others = (name for name, value in wanted.items() if getattr(own, name) != value and name != technique.knob)
            if sum(1 for _ in others) <= MOST_CHANGES:
                yield replace(own, **wanted)

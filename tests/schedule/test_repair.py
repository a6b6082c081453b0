"""Refused schedules: the knobs that are named, and the change that makes them legal."""

from __future__ import annotations

import itertools
import random

import pytest

from normgen.choice.first import default_schedule
from normgen.choice.repair import repair
from normgen.device import target
from normgen.knobs import TABLE
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load

H200 = target("h200")


def problem(direction: str = "forward", dtype: str = "f32", shape: str = "8192x768") -> Problem:
    return problem_for(load("layernorm"), shape=shape, direction=direction, dtype=dtype)


@pytest.mark.parametrize(
    ("knobs", "named", "changes"),
    [
        ({"stages": 2}, {"stages", "persistent"}, {"stages": 1}),
        ({"threads_per_row": 1}, {"threads_per_row", "rows_per_block"}, {"rows_per_block": 32}),
        ({"vector": 16}, {"vector"}, {"vector": 4}),
        ({"copy": "cp_async"}, {"copy", "hold"}, {"hold": "shared"}),
        ({"copy": "bulk", "hold": "registers"}, {"copy", "hold", "persistent"}, None),
        ({"cluster": 2, "threads_per_row": 16}, {"threads_per_row", "rows_per_block"}, None),
    ],
)
def test_a_refusal_names_its_knobs_and_a_change_of_those_nobody_asked_for(
    knobs: dict[str, object], named: set[str], changes: dict[str, object] | None
) -> None:
    given = problem()
    schedule = Schedule(**knobs)  # type: ignore[arg-type]
    found = repair(given, schedule, H200, knobs)
    assert found is not None
    assert named <= set(found.knobs)
    assert found.changes is not None
    assert changes is None or found.changes == changes
    assert refusal(given, schedule.varied(**found.changes), H200) is None
    assert all(f"{name}={getattr(schedule, name)}" in str(found.error(schedule)) for name in named)


def test_where_few_changes_are_not_enough_the_default_is_told_with_what_was_asked() -> None:
    """A product on the plain point lacks all five knobs of its tiles."""
    given = problem_for(load("linear"), shape="16x1024", inner=512, dtype="bf16")
    for knobs in ({}, {"tile_m": 16, "fragment": "mma"}):
        schedule = Schedule(**knobs)  # type: ignore[arg-type]
        found = repair(given, schedule, H200, knobs)
        assert found is not None
        assert found.changes is not None
        assert not set(found.changes) & set(knobs)
        assert refusal(given, schedule.varied(**found.changes), H200) is None
    found = repair(given, Schedule(softmax="online"), H200, {"softmax"})  # type: ignore[arg-type]
    assert found is not None
    assert found.changes is None
    assert "nor the default with it" in str(found.error(Schedule()))


def test_a_legal_schedule_needs_no_repair() -> None:
    given = problem()
    assert repair(given, default_schedule(given, H200), H200) is None


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_change_of_a_random_refused_schedule_is_legal_and_no_single_one_was_missed(direction: str) -> None:
    """Whoever changes two knobs of a schedule was not told that one would do."""
    draw, given = random.Random(7), problem(direction, "bf16")
    base, found_any = default_schedule(given, H200), 0
    while found_any < 12:
        named = draw.sample(TABLE, 2)
        schedule = base.varied(**{knob.name: draw.choice(knob.values) for knob in named})
        found = repair(given, schedule, H200, [])
        if found is None:
            continue
        found_any += 1
        assert found.changes, str(schedule)
        assert refusal(given, schedule.varied(**found.changes), H200) is None
        if len(found.changes) > 1:
            ones = itertools.chain.from_iterable(((k.name, v) for v in k.values) for k in TABLE)
            assert all(refusal(given, schedule.varied(**{n: v}), H200) is not None for n, v in ones), str(schedule)

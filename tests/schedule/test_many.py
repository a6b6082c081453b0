"""Columns of schedules are those schedules; a sieve says of each what its rules say of it alone."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from normgen.device import Device, target
from normgen.knobs import KNOBS, Copy, Hold, VarianceMethod
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.columns import by_value, down, least, log2, most, some, up, where
from normgen.schedule.legality import PASSES, Rule, refusal, rules_of
from normgen.schedule.many import DENSE, Schedules, combinations
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import Sieve
from normgen.spec.reader import load

H200 = target("h200")
LAYERNORM = problem_for(load("layernorm"), shape="4096x1024", dtype="bf16")
LISTS: dict[str, tuple[Any, ...]] = {"vector": (8, 2, 4), "hold": tuple(Hold), "copy": tuple(Copy), "stages": (1, 2)}
EVERY = [Schedule().varied(**dict(zip(LISTS, some_, strict=True))) for some_ in itertools.product(*LISTS.values())]


def test_columns_are_the_schedules_that_they_were_made_of() -> None:
    found = Schedules.of(EVERY)
    assert list(found) == EVERY == [found[at] for at in range(len(EVERY))]
    assert found == EVERY
    assert found == Schedules.of(EVERY[::-1])[::-1]
    assert found != EVERY[1:]
    assert found.compact() == found
    assert list(found.compact()) == EVERY
    assert list(found[5:60:7]) == EVERY[5:60:7]
    assert list(found.taken(np.array([3, 1]))) == [EVERY[3], EVERY[1]]
    assert list(found[:2].followed_by(Schedules.of([Schedule(vector=16)]))) == [*EVERY[:2], Schedule(vector=16)]
    assert [hash(s) for s in found] == [hash(s) for s in EVERY]


def test_a_schedule_is_found_by_its_knobs() -> None:
    found = Schedules.of([*EVERY, EVERY[7]])
    assert EVERY[7] in found
    assert Schedule(vector=16) not in found
    assert found.index(EVERY[7]) == 7
    assert found.index(EVERY[7], 8) == len(EVERY)
    with pytest.raises(ValueError, match="is not among"):
        found.index(Schedule(vector=16))


def test_no_schedules_are_a_sequence_too() -> None:
    none = Schedules.of([])
    assert (len(none), list(none), Schedule() in none) == (0, [], False)
    assert list(none.followed_by(Schedules.of(EVERY))) == EVERY


def test_combinations_come_in_the_order_of_a_product_and_leave_out_what_is_not_allowed() -> None:
    assert list(Schedules.of([Schedule()]).times(LISTS)) == EVERY
    bases = Schedules.of([Schedule(persistent=1), Schedule(persistent=2)])
    allowed = {"vector": np.array([[True, False, True], [False, True, False]]), "stages": np.ones((2, 2), dtype=bool)}
    found = bases.times({"vector": (8, 2, 4), "stages": (1, 2)}, allowed)
    pairs = [(s.persistent, s.vector, s.stages) for s in found]
    assert pairs == [(1, 8, 1), (1, 8, 2), (1, 4, 1), (1, 4, 2), (2, 2, 1), (2, 2, 2)]


@pytest.mark.parametrize("knobs", [[], [5, 8], [5, 8, 10], list(range(29))])
def test_of_each_combination_one_schedule_is_found(knobs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    found, rows = Schedules.of(EVERY), np.arange(1, len(EVERY), 2)
    told = [tuple(found.codes[row, knobs]) for row in rows]
    for dense in (DENSE, 1):
        monkeypatch.setattr("normgen.schedule.many.DENSE", dense)
        first, which = combinations(found, rows, knobs)
        assert len(first) == len(set(told))
        assert [tuple(found.codes[row, knobs]) for row in first[which]] == told


def test_formulas_take_a_column_as_they_take_its_values() -> None:
    columns = Schedules.of(EVERY).columns
    assert columns.threads == Schedule().threads

    def formula(s: Schedule) -> tuple[Any, ...]:
        return (
            where(s.hold == Hold.SHARED, s.vector, -s.stages),
            where(s.copy.is_asynchronous & (s.hold != Hold.RELOAD), 1.5, 2.5),
            by_value(s.copy, {Copy.BULK: 3.0}, 1.0),
            by_value(s.variance, {VarianceMethod.TWO_PASS: 4.0}),
            most(s.vector, s.stages + 2) + least(s.vector, 3),
            log2(s.vector) + up(s.vector / 3) + down(s.vector / 3),
        )

    for column, *alone in zip(formula(columns), *map(formula, EVERY), strict=True):
        assert np.broadcast_to(column, len(EVERY)).tolist() == alone
    assert some(columns.vector > 4)
    assert not some(columns.vector > 8)


def wide_in_shared(_: Problem, s: Schedule, __: Device) -> str | None:
    """Reads a knob only where another one has some value."""
    if s.hold is Hold.SHARED and s.vector > 2:
        return f"{s.vector} in shared" if s.copy is Copy.DIRECT else None
    return "two rows" if s.stages == 2 and s.hold is not Hold.REGISTERS else None


def copied(_: Problem, s: Schedule, __: Device) -> str | None:
    """Reads them all."""
    return "plain" if s.varied(vector=1) == Schedule().varied(hold=s.hold) else None


@pytest.mark.parametrize("tried", [1, 32])
def test_a_rule_says_of_many_schedules_what_it_says_of_each(tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normgen.schedule.space.TRIED", tried)
    sieve, rules = Sieve(LAYERNORM, H200), (wide_in_shared, copied)
    legal = sieve.legal(Schedules.of(EVERY), rules)
    alone = [refusal(LAYERNORM, s, H200, rules) for s in EVERY]
    assert list(legal) == [s for s, reason in zip(EVERY, alone, strict=True) if reason is None]
    counts = {reason: alone.count(reason) for reason in alone if reason}
    assert {r.reason: r.count for r in sieve.refusals} == counts
    assert "plain" in counts
    for refused in sieve.refusals:
        assert refusal(LAYERNORM, refused.example, H200, rules) == refused.reason


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("op", ["layernorm", "softmax", "quantize_to_fp8_group"])
def test_the_rules_of_legality_say_of_random_schedules_what_they_say_of_each(op: str, direction: str) -> None:
    if (op, direction) == ("quantize_to_fp8_group", "backward"):
        direction, dtype = "forward", "f32"
    else:
        dtype = "bf16"
    problem = problem_for(load(op), shape="300x4096", dtype=dtype, direction=direction)
    rules, drawn = rules_of(problem), random.Random(op + direction)
    some_ = [Schedule(threads_per_row=128, rows_per_block=1, vector=4, hold="registers", unroll=0)]  # type: ignore[arg-type]
    for _ in range(600):
        knobs = drawn.sample(["hold", "copy", "persistent", "stages", "vector", "unroll", "params", "cluster"], 2)
        values: dict[str, Any] = {name: drawn.choice(VALUES[name]) for name in knobs}
        some_.append(drawn.choice(some_).varied(**values))
    found = Sieve(problem, H200).refused(Schedules.of(some_), rules)
    assert [found.reasons[code] for code in found.codes] == [refusal(problem, s, H200, rules) for s in some_]


VALUES: dict[str, tuple[Any, ...]] = {
    **LISTS,
    "persistent": (0, 1, 2),
    "unroll": (0, 1, 2),
    "cluster": (1, 2, 4),
    "params": tuple(type(Schedule().params)),
}


PASSED = [
    LAYERNORM,
    problem_for(load("layernorm"), shape="512x65536", dtype="f32", direction="backward", deterministic=True),
    problem_for(load("softmax"), shape="64x131072", dtype="f32"),
    problem_for(load("rmsnorm_to_fp8_group"), shape="300x3072", dtype="bf16"),
    problem_for(load("swiglu"), shape="4096x11008", dtype="f16"),
    problem_for(load("cross_entropy"), shape="128x32001", dtype="bf16"),
]


@pytest.mark.parametrize("rule", PASSES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("problem", PASSED, ids=str)
def test_a_rule_passes_by_its_formula_what_it_refuses_nothing_of(problem: Problem, rule: Rule) -> None:
    draw = np.random.default_rng(0)
    lists = {name: knob.values for name, knob in KNOBS.items() if knob.values}
    lists = {name: values for name, values in lists.items() if not name.startswith(("tile_", "thread_m", "thread_n"))}
    knobs = ({name: values[draw.integers(len(values))] for name, values in lists.items()} for _ in range(2000))
    schedules = Schedules.of([Schedule().varied(**knob) for knob in knobs])
    passed = np.broadcast_to(PASSES[rule](problem, schedules.columns, H200), len(schedules))
    assert passed.any()
    assert passed.tolist() == [rule(problem, schedule, H200) is None for schedule in schedules]
    alone = [bool(PASSES[rule](problem, schedule, H200)) for schedule in schedules[:200]]
    assert alone == passed.tolist()[:200]

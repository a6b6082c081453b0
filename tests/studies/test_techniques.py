"""Techniques: which a schedule uses, and what stands in for one of them."""

from __future__ import annotations

import pytest

from normgen.device import TARGETS
from normgen.knobs import KNOBS, TABLE
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.schedule.space import BACKWARD_KNOBS, DEFAULT_KNOBS
from normgen.spec.reader import load
from normgen.studies.techniques import (
    ALTERNATIVES,
    COUNTED,
    MOST_CHANGES,
    _neighbours,
    all_techniques,
    changes,
    without,
)
from tests.codegen.kernels import has_row_barriers_in

H200 = TARGETS["h200"]
TECHNIQUES = {t.name: t for t in all_techniques()}
FORWARD = problem_for(load("layernorm"), shape="8192x4096", dtype="bf16")
BACKWARD = problem_for(load("layernorm"), shape="8192x4096", dtype="bf16", direction="backward")
ODD = problem_for(load("layernorm"), shape="8192x4097", dtype="bf16")
IN_REGISTERS = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0)
SUMMED = Schedule(
    threads_per_row=256, rows_per_block=2, vector=8, hold="registers", unroll=0, persistent=1, stages=2, params="kept",
    dependent_launch="on",
)  # fmt: skip


def names_in(schedule: Schedule, problem: Problem) -> set[str]:
    return {t.name for t in all_techniques() if t.is_in(schedule, problem)}


def test_every_value_of_every_knob_but_the_sizes_is_a_technique_or_plain() -> None:
    for knob, values in ((k.name, k.values) for k in TABLE):
        if KNOBS[knob].is_size:
            continue
        covered = {v for t in TECHNIQUES.values() if t.knob == knob for v in t.values}
        plain = {getattr(Schedule(), knob)}
        assert covered | plain == set(values), knob
    for technique in TECHNIQUES.values():
        assert not set(technique.instead) & set(technique.values) or technique.name == "row_barriers"


def test_every_technique_has_words_and_no_words_are_of_a_value_that_is_gone() -> None:
    assert all(technique.summary for technique in TECHNIQUES.values())
    for knob in TABLE:
        assert {value for value in knob.words if value} <= set(map(str, knob.values)), knob.name
    assert {*COUNTED, *ALTERNATIVES} <= set(KNOBS)


@pytest.mark.parametrize("searched", [DEFAULT_KNOBS, BACKWARD_KNOBS], ids=["forward", "backward"])
def test_every_value_that_is_searched_has_words_or_is_plain(searched: dict[str, tuple[object, ...]]) -> None:
    for knob, values in searched.items():
        for value in () if KNOBS[knob].is_size else values:
            name = knob if knob in COUNTED else f"{knob}={value}"
            plain = value in (getattr(Schedule(), knob), "exact")
            assert plain or TECHNIQUES[name].summary, name


@pytest.mark.parametrize("name", TECHNIQUES)
def test_schedules_near_by_have_values_of_the_knobs(name: str) -> None:
    seen: set[tuple[str, object]] = set()
    for schedule in _neighbours(TECHNIQUES[name], SUMMED):
        knobs = schedule.as_dict()
        if not knobs.items() <= seen:  # each value is judged by itself, and is in thousands of schedules
            assert schedule_from(knobs) == schedule
            seen |= knobs.items()
    assert seen


@pytest.mark.parametrize("rows_per_block", [1, 2])
@pytest.mark.parametrize("threads_per_row", [32, 64, 128, 256, 512])
@pytest.mark.parametrize("reduce_with", ["shuffle", "cooperative_groups", "shared_tree"])
def test_row_barriers_are_in_a_schedule_whose_text_waits_at_one_barrier_a_row(
    reduce_with: str, threads_per_row: int, rows_per_block: int
) -> None:
    schedule = Schedule(
        threads_per_row=threads_per_row, rows_per_block=rows_per_block, vector=4, hold="registers", unroll=0,
        reduce_with=reduce_with,
    )  # fmt: skip
    assert refusal(FORWARD, schedule, H200) is None
    waits = has_row_barriers_in(emit(FORWARD, schedule).text)
    assert TECHNIQUES["row_barriers"].is_in(schedule, FORWARD) == waits


def test_what_a_schedule_uses() -> None:
    assert names_in(IN_REGISTERS, FORWARD) == {"hold=registers"}
    assert names_in(SUMMED, BACKWARD) == {
        *("hold=registers", "persistent", "stages", "params=kept", "columns=partials_two_kernels"),
        *("dependent_launch=on", "row_barriers"),
    }
    assert "columns=partials_two_kernels" not in names_in(SUMMED, FORWARD)
    narrow = Schedule(threads_per_row=64, rows_per_block=4, vector=8, hold="registers", unroll=0)
    assert "row_barriers" not in names_in(narrow, FORWARD)


CASES = [
    (FORWARD, Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, load="streaming"), "load=streaming"),
    (FORWARD, Schedule(threads_per_row=128, vector=8, hold="shared", unroll=1, variance="welford"), "variance=welford"),
    (ODD, Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, edges="peel"), "edges=peel"),
    (BACKWARD, SUMMED, "persistent"),
    (BACKWARD, SUMMED, "stages"),
    (BACKWARD, SUMMED, "columns=partials_two_kernels"),
    (BACKWARD, SUMMED, "row_barriers"),
]


@pytest.mark.parametrize(("problem", "schedule", "name"), CASES, ids=[name for _, _, name in CASES])
def test_what_stands_in_is_legal_near_and_without_the_technique(
    problem: Problem, schedule: Schedule, name: str
) -> None:
    technique = TECHNIQUES[name]
    assert refusal(problem, schedule, H200) is None
    assert technique.is_in(schedule, problem)
    found = without(technique, schedule, problem, H200, count=4)
    assert 1 <= len(found) <= 4
    assert len(set(found)) == len(found)
    for other in found:
        assert refusal(problem, other, H200) is None
        assert not technique.is_in(other, problem)
        assert len(set(changes(other, schedule)) - {technique.knob}) <= MOST_CHANGES


def test_the_same_schedule_with_only_that_knob_changed_comes_first_where_it_is_legal() -> None:
    own = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, store="streaming", params="early")
    for name, changed in (("store=streaming", "store"), ("params=early", "params")):
        first = without(TECHNIQUES[name], own, FORWARD, H200, count=3)[0]
        assert changes(first, own) == (changed,)


def test_without_a_cluster_a_very_long_row_is_read_again() -> None:
    problem = problem_for(load("rmsnorm"), shape="64x262144")
    cluster = Schedule(threads_per_row=512, cluster=8, vector=4, hold="registers", unroll=0)
    found = without(TECHNIQUES["cluster"], cluster, problem, H200, count=4)
    assert found
    assert all(s.cluster == 1 and s.hold == "reload" for s in found)

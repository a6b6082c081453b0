"""Backward kernels that promise the same bits, write fewer gradients, or add to what is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.device import target
from normgen.knobs import KNOBS, ColumnWay
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.python.handle import general_schedules
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.spec.reader import load
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import is_deterministic, report, wrong_backward

H200 = target("h200")
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def backward(op: str = "layernorm", shape: str = "37x256", **more: object) -> Problem:
    return problem_for(load(op), shape=shape, direction="backward", **{"dtype": "bf16", **more})


def test_a_forward_problem_keeps_the_promise_without_being_told() -> None:
    assert not problem_for(load("layernorm"), shape="8x768", deterministic=True).deterministic
    assert not backward("softmax", deterministic=True).deterministic
    assert backward(deterministic=True).deterministic


@pytest.mark.parametrize("columns", KNOBS["columns"].values)
def test_a_promise_of_the_same_bits_refuses_atomics_with_a_sentence(columns: str) -> None:
    schedule = Schedule(threads_per_row=32, rows_per_block=4, vector=4, hold="registers", unroll=0, columns=columns)
    schedule = replace(schedule, persistent=0 if columns in ("atomic", "shared_atomic") else 2)
    assert refusal(backward(), schedule, H200) is None
    reason = refusal(backward(deterministic=True), schedule, H200)
    if ColumnWay(columns).is_deterministic:
        assert reason is None
    else:
        assert reason is not None
        assert reason.startswith("deterministic: atomics")


def test_the_space_of_a_deterministic_problem_has_no_atomics() -> None:
    found = {s.columns for s in space(backward(shape="1024x1024", deterministic=True), H200).legal}
    assert found == {"partials_two_kernels"} < {way for way in ColumnWay if way.is_deterministic}
    assert default_schedule(backward(shape="4096x1024", deterministic=True), H200).columns.is_deterministic


PROMISED: dict[str, Case] = {}
for _cols, _more in (
    *((256, {}), (33, {"align": 4}), (300, {"any_cols": True}), (1001, {"pitch": 1003, "align": 4})),
    *((7, {}), (9, {"any_cols": True})),
):
    _problem = backward(shape=f"37x{_cols}", deterministic=True, **_more)
    PROMISED[f"default at {_cols} columns"] = (_problem, default_schedule(_problem, DEVICE))
    if "any_cols" in _more:
        for _way, _schedule in enumerate(fallback_schedules(_problem)):
            if refusal(_problem, _schedule, DEVICE) is None:
                PROMISED[f"fallback {_way} at {_cols} columns"] = (_problem, _schedule)
PROMISED |= {
    f"general kernel {i} at {cols} columns": case
    for cols in (7, 256)
    for i, case in enumerate(general_schedules(PROMISED[f"default at {cols} columns"][0], DEVICE))
}


@needs_compiler
@pytest.mark.parametrize("seed", [1, 2])
def test_deterministic_kernels_of_any_layout_give_the_same_bits_in_any_order_of_blocks(seed: int) -> None:
    for problem, schedule in PROMISED.values():
        assert refusal(problem, schedule, DEVICE) is None
        assert is_deterministic(problem, schedule)
    found = list(wrong_backward(list(PROMISED.values()), CpuExecutor(), seed=seed))
    assert not found, report(found, list(PROMISED.values()))


def test_atomics_in_row_order_run_in_one_block() -> None:
    problem = backward(any_cols=True, deterministic=True)
    for schedule in fallback_schedules(problem):
        launch = emit(problem, schedule).kernels[0].launch
        assert [launch.grid(rows=rows, sm_count=132) for rows in (0, 1, 100000)] == [1, 1, 1]
        varying = emit(replace(problem, deterministic=False), schedule).kernels[0].launch
        assert varying.grid(rows=100000, sm_count=132) == 100000


@pytest.mark.parametrize(
    ("op", "gradients", "tensors"),
    [
        ("layernorm", ("x",), "dx dy x weight mean rstd"),
        ("layernorm", ("weight", "bias"), "dweight dbias dy x mean rstd"),
        ("layernorm", ("bias",), "dbias dy"),
        ("rmsnorm", ("weight",), "dweight dy x rstd"),
    ],
)
@pytest.mark.parametrize("accumulate", [False, True])
def test_kernels_of_some_gradients_take_only_what_these_need_and_are_right(
    op: str, gradients: tuple[str, ...], tensors: str, accumulate: bool
) -> None:
    problem = backward(op, gradients=gradients, accumulate=accumulate)
    assert " ".join(t.name for t in problem.tensors) == tensors
    assert problem.gradients == gradients
    if find_compiler() is not None:
        case = (problem, default_schedule(problem, DEVICE))
        found = list(wrong_backward([case], CpuExecutor(), seed=0))
        assert not found, report(found, [case])


def test_all_gradients_are_no_choice() -> None:
    assert backward().gradients is None
    assert backward(gradients=("x", "weight", "bias")).gradients is None
    assert backward(without=("bias",)).gradients is None
    assert problem_for(load("layernorm"), shape="8x768").gradients is None

"""Gradients that are the same values are stored once, and stand for each of their tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.device import target
from normgen.errors import UsageError
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for, written_program
from normgen.records.questions import problem_of
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import parse
from normgen.verify.derivative_proof import prove
from tests.codegen.test_in_place import ADD_RMSNORM


def backward(**asked: Any) -> Problem:
    question = {"shape": "9x96", "dtype": "bf16", **asked}
    return problem_for(ADD_RMSNORM, direction="backward", **question)


def written(problem: Problem) -> list[str]:
    return [t.name for t in problem.tensors if t.is_written]


def test_one_tensor_stands_for_both() -> None:
    problem = backward()
    assert written(problem) == ["dx", "dweight"]
    assert problem.results == {"dx": "dx", "dresidual": "dx", "dweight": "dweight"}
    assert problem.gradients is None
    text = emit(problem, default_schedule(problem, target("h200"))).text
    assert "dx_row" in text
    assert "dresidual" not in text


def test_the_bytes_that_must_move_are_counted_once() -> None:
    problem, separate = backward(), backward(dtypes={"residual": "f32"})
    assert written(separate) == ["dx", "dresidual", "dweight"]
    rows = 9 * 96 * 2
    assert problem.compulsory_bytes == 5 * rows + 2 * 96 * 2  # dh, dy, x, residual; dx; weight and its gradient
    assert separate.compulsory_bytes - problem.compulsory_bytes == 3 * rows  # dresidual and twice as wide a residual


def test_gradients_that_are_added_or_alone_are_stored_by_themselves() -> None:
    assert written(backward(accumulate=True)) == ["dx", "dresidual", "dweight"]
    assert written(backward(gradients=("residual",))) == ["dresidual"]
    assert backward(gradients=("residual",)).results == {"dresidual": "dresidual"}
    both = backward(gradients=("residual", "x"))
    assert both.results == {"dx": "dx", "dresidual": "dx"}
    assert both.gradients == ("x", "residual")


def test_an_optional_tensor_may_be_left_out_with_its_gradient() -> None:
    spec = parse("""
        name = "maybe_added"
        [tensors]
        x = "input"
        r = { role = "input", optional = true, absent = "0" }
        y = "output"
        [formulas]
        y = "x + r"
        """)
    assert written(problem_for(spec, shape="4x8", direction="backward")) == ["dx", "dr"]


def test_the_key_of_a_record_asks_for_the_same_again() -> None:
    for problem in (backward(), backward(gradients=("residual", "x")), backward(in_place={"dx": "dh"})):
        key = problem.question
        assert dict(key.dtypes)["dresidual"] == "bf16"
        assert problem_of(key, ADD_RMSNORM) == problem


def test_each_gradient_is_proven_of_its_own_tensor() -> None:
    problem = backward()
    slopes = prove(problem, written_program(problem))
    assert {slope.tensor for slope in slopes} == {"x", "residual", "weight"}


def test_a_gradient_that_stands_for_another_is_named_in_place() -> None:
    assert backward(in_place={"dx": "dh"}).results == {"dx": "dh", "dresidual": "dh", "dweight": "dweight"}
    with pytest.raises(UsageError, match="'dresidual' is none that is written") as refused:
        backward(in_place={"dresidual": "dh"})
    assert refused.value.hint == "'dresidual' is stored once, as 'dx'"


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("asked", [{}, {"dtypes": {"residual": "f32"}}, {"in_place": {"dx": "dy"}}])
def test_the_kernels_are_right_on_the_cpu(asked: dict[str, object]) -> None:
    problem = backward(**asked)
    checked = check_on_cpu(problem, emit(problem, Schedule(threads_per_row=64, vector=2, columns="atomic")))
    assert checked.ok, checked.summary
    assert not math.isnan(sum(checked.error.values()))

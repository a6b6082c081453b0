"""A gradient that is zero is written as zero, by every way to sum columns; an accumulated one is left as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.cpu import build, find_compiler
from normgen.device import target
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for, written_program
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from tests.codegen.executors import new_workspace
from tests.codegen.layouts import DEVICE

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
TENSORS = 'x = "input"\nb = "parameter"\ny = "output"\n'
SAVED = 'm = "statistic"\n[backward]\nsaved = ["m"]\n'
OPTIONAL = 'm = { role = "statistic", optional = true }\n'
# what is written, the optional tensors left out, the gradients that are zero
SPECS: dict[str, tuple[str, tuple[str, ...], set[str]]] = {
    "a parameter of a saved statistic": (
        TENSORS + SAVED + '[formulas]\nm = "mean(x + b)"\ny = "2 * x"\n',
        (),
        {"db"},
    ),
    "a parameter of an absent statistic": (
        TENSORS + OPTIONAL + '[formulas]\nm = "mean(x + b)"\ny = "2 * x"\n',
        ("m",),
        {"db"},
    ),
    "one of two parameters": (
        TENSORS + 'w = "parameter"\n' + SAVED + '[formulas]\nm = "mean(x + b)"\ny = "x * w"\n',
        (),
        {"db"},
    ),
    "two parameters": (
        TENSORS + 'c = "parameter"\n' + SAVED + '[formulas]\nm = "mean(x * c + b)"\ny = "2 * x"\n',
        (),
        {"db", "dc"},
    ),
    "an input": (
        TENSORS + 'g = "input"\n' + SAVED + '[formulas]\nm = "mean(g * x)"\ny = "x + b"\n',
        (),
        {"dg"},
    ),
    "all": (
        TENSORS + 'g = "input"\n' + SAVED + '[formulas]\nm = "mean(g * x + b)"\ny = "x**0 + 1"\n',
        (),
        {"dx", "dg", "db"},
    ),
}  # fmt: skip
SHAPE = (37, 96)
KNOBS: dict[str, dict[str, Any]] = {
    "atomic": {"columns": "atomic", "threads_per_row": 32, "rows_per_block": 4, "hold": "reload"},
    "shared_atomic": {"columns": "shared_atomic", "threads_per_row": 32, "rows_per_block": 2, "persistent": 2},
    "register_atomic": {"columns": "register_atomic", "threads_per_row": 8, "rows_per_block": 8, "persistent": 1},
    "partials": {"columns": "partials_two_kernels", "threads_per_row": 32, "vector": 4, "persistent": 2},
    "last tile": {"columns": "partials_last_tile", "threads_per_row": 64, "persistent": 2},
    "cluster": {"columns": "partials_two_kernels", "cluster": 2, "threads_per_row": 32, "persistent": 2},
    "default": {},
}


def made(name: str) -> Spec:
    return parse(f'name = "made_up"\n[tensors]\n{SPECS[name][0]}')


def schedule_for(problem: Problem, knobs: str) -> Schedule:
    chosen = {**{"hold": "registers", "unroll": 0}, **KNOBS[knobs]}
    return Schedule(**chosen) if KNOBS[knobs] else default_schedule(problem, target("h200"))


@needs_compiler
@pytest.mark.parametrize("knobs", KNOBS)
@pytest.mark.parametrize("name", SPECS)
def test_a_gradient_that_is_zero_is_written_as_zero(name: str, knobs: str) -> None:
    _, without, zeros = SPECS[name]
    problem = problem_for(made(name), shape=SHAPE, direction="backward", without=without)
    inputs, outputs, _ = solved(problem, knobs)
    assert set(problem.results) == {f"d{t.name}" for t in read(problem.spec)}
    for tensor in zeros:
        gradient = outputs.arrays[problem.results[tensor]]
        assert np.array_equal(gradient, np.zeros_like(gradient)), tensor
    verdict = verify.check(problem, inputs, outputs)
    assert verdict.ok, verdict.summary()


@needs_compiler
@pytest.mark.parametrize("knobs", KNOBS)
@pytest.mark.parametrize("name", SPECS)
def test_an_accumulated_gradient_that_is_zero_leaves_its_tensor_as_it_is(name: str, knobs: str) -> None:
    _, without, zeros = SPECS[name]
    problem = problem_for(made(name), shape=SHAPE, direction="backward", without=without, accumulate=True)
    inputs, outputs, before = solved(problem, knobs)
    for tensor in zeros:
        assert outputs.arrays[tensor].tobytes() == before[tensor].tobytes(), tensor
    assert not zeros & {store.tensor for store in written_program(problem).stores}
    verdict = verify.check(problem, inputs, outputs)
    assert verdict.ok, verdict.summary()


@needs_compiler
def test_two_parameters_with_one_gradient_are_both_written() -> None:
    text = f'name = "made_up"\n[tensors]\n{TENSORS}c = "parameter"\n[formulas]\ny = "x + b + c"\n'
    problem = problem_for(parse(text), shape=SHAPE, direction="backward")
    for knobs in KNOBS:
        inputs, outputs, _ = solved(problem, knobs)
        verdict = verify.check(problem, inputs, outputs)
        assert verdict.ok, verdict.summary()


@needs_compiler
def test_no_rows_give_parameter_gradients_of_zero() -> None:
    problem = problem_for(made("one of two parameters"), shape=(8, 96), direction="backward")
    empty = replace(problem, rows=0)
    _, outputs, _ = solved(empty, "partials")
    assert not outputs.arrays["db"].any()
    assert not outputs.arrays["dw"].any()


def read(spec: Spec) -> list[Any]:
    return [t for t in spec.tensors if not t.role.is_written]


def solved(problem: Problem, knobs: str) -> tuple[verify.Inputs, verify.Outputs, dict[str, Any]]:
    """One run on the CPU executor; what is not accumulated holds NaN before."""
    schedule = schedule_for(problem, knobs)
    assert refusal(problem, schedule, target("h200")) is None
    inputs, outputs = verify.make_inputs(problem), verify.make_outputs(problem)
    for name, array in outputs.arrays.items():
        if not problem.accumulate:
            array[...] = np.nan
        assert problem.tensor(name).is_written
    before = {name: array.copy() for name, array in outputs.arrays.items()}
    module = emit(problem, schedule)
    run = build(module).run(
        {**inputs.arrays, **outputs.arrays},
        rows=problem.rows,
        cols=problem.cols,
        scalars=inputs.scalars,
        sm_count=DEVICE.sm_count,
        workspace=new_workspace(module, problem.rows),
    )
    assert not run.faults
    return inputs, outputs, before

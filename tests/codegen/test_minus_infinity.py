"""Rows of -inf, as masks write them, in every way that a row waits and its threads combine.

As in torch, a softmax of nothing but -inf is NaN, and one of a single other element is exactly 1 there, 0 elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from normgen import verify
from normgen.cpu import find_compiler
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from tests.codegen.executors import CpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.test_variances import RING, SIDE_BY_SIDE

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
ROWS, COLS = 24, 512
KINDS = 4  # of rows: normal, all -inf, all but the first element, all but one anywhere
MODES: dict[str, dict[str, Any]] = SIDE_BY_SIDE | {
    "read again": {"threads_per_row": 64, "vector": 4, "hold": "reload"},
    "read again, one element at a time": {"threads_per_row": 64, "vector": 1, "hold": "reload", "unroll": 4},
    "in shared memory": {"threads_per_row": 64, "vector": 4, "hold": "shared", "unroll": 1},
    "in registers and shared memory": {"threads_per_row": 2, "rows_per_block": 16, "vector": 4, "hold": "hybrid"},
    "approximate": {"threads_per_row": 64, "vector": 4, "hold": "reload", "arithmetic": "approximate"},
    "copies in shared memory, one slot": {
        **{"threads_per_row": 64, "vector": 4, "hold": "shared", "copy": "cp_async", **RING, "stages": 1}
    },
}
# The sum of a wide cluster waits for states of blocks that hold nothing but -inf.
WIDE = {"wide cluster": {"threads_per_row": 32, "vector": 1, "cluster": 8, "hold": "registers", "unroll": 0}}


def kept_columns() -> np.ndarray[Any, Any]:
    """The column of each row's only element, -1 where there is none."""
    rng = np.random.default_rng(0)
    return np.array([(-1, -1, 0, rng.integers(COLS))[row % KINDS] for row in range(ROWS)])


def masked(x: np.ndarray[Any, Any]) -> None:
    """Leave at most one element in three rows of four."""
    for row, column in enumerate(kept_columns()):
        if row % KINDS:
            x[row, np.arange(COLS) != column] = -np.inf


def only_element_is(result: np.ndarray[Any, Any], here: Any, elsewhere: Any) -> None:
    """NaN throughout in rows without an element; `here` at a row's only element, `elsewhere` beside it."""
    result = result.astype(np.float64)
    for row, column in enumerate(kept_columns()):
        if row % KINDS == 0:
            assert np.isfinite(result[row]).all()
        elif column < 0:
            assert np.isnan(result[row]).all(), f"row {row}"
        else:
            wanted = np.broadcast_to(elsewhere, (ROWS, COLS))[row].astype(np.float64)
            wanted[column] = np.broadcast_to(here, ROWS)[row]
            np.testing.assert_allclose(result[row], wanted, rtol=1e-2, err_msg=f"row {row}")


def run(problem: Problem, schedules: list[Schedule], inputs: verify.Inputs) -> list[verify.Outputs]:
    found = []
    for kernel in CpuExecutor().build([emit(problem, schedule) for schedule in schedules]):
        outputs = verify.make_outputs(problem)
        assert kernel.run(inputs, outputs) == ""
        found.append(outputs)
    return found


def schedules_of(problem: Problem, mode: str) -> list[Schedule]:
    """Of both softmaxes, where the problem has a choice."""
    knobs = (MODES | WIDE)[mode]
    ways = ("two_pass", "online") if problem.direction.value == "forward" else ("two_pass",)
    schedules = [Schedule(**knobs, softmax=way) for way in ways]
    for schedule in schedules:
        if why := refusal(problem, schedule, DEVICE):
            pytest.skip(f"{schedule}: {why}")
    return schedules


@pytest.mark.parametrize("mode", [*MODES, *WIDE])
@pytest.mark.parametrize(("op", "here", "elsewhere"), [("softmax", 1.0, 0.0), ("log_softmax", 0.0, -np.inf)])
def test_a_masked_row_is_nan_and_a_row_of_one_element_is_exact(
    op: str, here: float, elsewhere: float, mode: str
) -> None:
    problem = problem_for(load(op), shape=(ROWS, COLS), dtype="f32")
    inputs = verify.make_inputs(problem, families=("normal",))
    masked(inputs.arrays["x"])
    for outputs in run(problem, schedules_of(problem, mode), inputs):
        only_element_is(outputs.arrays["y"], here, elsewhere)


@pytest.mark.parametrize("mode", [*MODES, *WIDE])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_the_gradient_of_a_masked_row_is_nan_and_that_of_one_element_exact(op: str, mode: str) -> None:
    problem = problem_for(load(op), shape=(ROWS, COLS), dtype="f32", direction="backward")
    inputs = verify.make_inputs(problem, families=("normal",))
    y, dy = inputs.arrays["y"], inputs.arrays["dy"].astype(np.float64)
    for row, column in enumerate(kept_columns()):
        if row % KINDS:
            y[row] = np.nan if column < 0 else 0.0 if op == "softmax" else -np.inf
            if column >= 0:
                y[row, column] = 1.0 if op == "softmax" else 0.0
    total = dy.sum(axis=1) - dy[np.arange(ROWS), kept_columns()]
    here, elsewhere = (0.0, 0.0) if op == "softmax" else (-total, dy)
    for outputs in run(problem, schedules_of(problem, mode), inputs):
        only_element_is(outputs.arrays["dx"], here, elsewhere)


@pytest.mark.parametrize("mode", [*MODES, *WIDE])
@pytest.mark.parametrize(
    ("formula", "here", "elsewhere"),
    [
        ("{sum}", 1.0, 1.0),
        ("1 / {sum}", 1.0, 1.0),
        ("log({sum})", 0.0, 0.0),
        ("exp(x - max(x)) + {sum}", 2.0, 1.0),
        ("exp(x - max(x)) + 1 / {sum}", 2.0, 1.0),
        ("exp(x - max(x)) / (1 + 1 / {sum})", 0.5, 0.0),
        ("exp(x - max(x)) / (1 + exp(-log({sum})))", 0.5, 0.0),
        ("1 + sum(exp(x - max(x)) * {sum})", 2.0, 2.0),
    ],
)
def test_what_is_made_of_the_sum_of_a_masked_row_is_nan(formula: str, here: float, elsewhere: float, mode: str) -> None:
    """An online sum is 0 of such a row: a quotient of an exponential by it is NaN, one of 1 is infinite."""
    text = formula.format(sum="sum(exp(x - max(x)))")
    spec = parse(f'name = "summed"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "{text}"\n')
    problem = problem_for(spec, shape=(ROWS, COLS), dtype="f32")
    inputs = verify.make_inputs(problem, families=("normal",))
    masked(inputs.arrays["x"])
    for outputs in run(problem, schedules_of(problem, mode), inputs):
        only_element_is(outputs.arrays["y"], here, elsewhere)

"""Launches that begin with their last rows: the same bits, whatever owns the rows, and the last rows first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normgen import verify
from normgen.cpu import find_compiler
from normgen.device import target
from normgen.knobs import ColumnWay, Copy, Edges, Hold, Params, RowOrder
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.verify import Inputs
from tests.codegen.executors import CpuExecutor, new_workspace

H200 = target("h200")
HELD = Schedule(threads_per_row=32, rows_per_block=4, vector=4, hold=Hold.REGISTERS, unroll=0)
WAYS = (
    HELD,
    replace(HELD, threads_per_row=128, rows_per_block=1),
    replace(HELD, threads_per_row=64, rows_per_block=1, cluster=2),
    replace(HELD, persistent=2),
    replace(HELD, persistent=2, stages=2),
    replace(HELD, persistent=1, stages=2, params=Params.PACKED),
    replace(HELD, persistent=1, stages=3, copy=Copy.CP_ASYNC),
    replace(HELD, persistent=1, stages=2, copy=Copy.BULK),
    replace(HELD, persistent=1, hold=Hold.SHARED, copy=Copy.CP_ASYNC, unroll=1),
    replace(HELD, threads_per_row=64, rows_per_block=1, cluster=2, persistent=1, stages=2),
)


def ran(problem: Problem, schedule: Schedule, inputs: Inputs) -> bytes:
    """All outputs of a call, on memory that held NaNs, of a kernel made for `problem`; inputs may have fewer rows."""
    assert refusal(problem, schedule, H200) is None
    module = emit(problem, schedule)
    (built,) = CpuExecutor().build([module])
    outputs = verify.make_outputs(inputs.problem)
    assert built.run(inputs, outputs, workspace=new_workspace(module, inputs.problem.rows)) == ""
    return b"".join(np.ascontiguousarray(a).tobytes() for a in outputs.arrays.values())


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("schedule", WAYS, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 1031])
def test_the_order_of_rows_does_not_show_in_their_bits(schedule: Schedule, rows: int) -> None:
    """A ragged tile is the first one then; a walker without a tile reads and writes nothing."""
    problem = problem_for(load("layernorm"), shape=(5000, 1024), dtype="bf16")
    inputs = verify.make_inputs(problem.with_rows(rows), seed=rows)
    first, second = (ran(problem, replace(schedule, row_order=order), inputs) for order in RowOrder)
    assert first == second


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("schedule", [replace(WAYS[3], edges=Edges.PEEL), replace(WAYS[4], edges=Edges.PEEL)], ids=str)
def test_peeled_rows_shift_as_they_do_in_ascending_order(schedule: Schedule) -> None:
    problem = problem_for(load("rmsnorm"), shape=(5000, 1027), dtype="bf16")
    inputs = verify.make_inputs(problem.with_rows(1031), seed=5)
    first, second = (ran(problem, replace(schedule, row_order=order), inputs) for order in RowOrder)
    assert first == second


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(
    ("op", "schedule"),
    [*(("rmsnorm", way) for way in WAYS[:3]), ("swiglu", HELD.varied(rows_per_block=1, parts=4))],
    ids=str,
)
@pytest.mark.parametrize("order", list(RowOrder))
def test_a_launch_begins_with_the_rows_that_its_order_names(op: str, schedule: Schedule, order: RowOrder) -> None:
    """Grids cut short, as if the rows were fewer: the blocks that run own the first rows, or the last ones."""
    problem = problem_for(load(op), shape=(64, 1024), dtype="bf16", without=["rstd"] if op == "rmsnorm" else [])
    module = emit(problem, replace(schedule, row_order=order))
    launch = module.kernels[0].launch
    few = launch.grid(rows=8, sm_count=H200.sm_count)
    kernel = replace(module.kernels[0], launch=replace(launch, blocks=few))
    (built,) = CpuExecutor().build([replace(module, kernels=(kernel,))])
    outputs = verify.make_outputs(problem)
    before = outputs.arrays["y"].tobytes()
    assert built.run(verify.make_inputs(problem, seed=1), outputs) == ""
    unlike = np.frombuffer(outputs.arrays["y"].tobytes(), np.uint8) != np.frombuffer(before, np.uint8)
    written = np.flatnonzero(unlike.reshape(problem.rows, -1).any(axis=1))
    assert written.tolist() == list(range(56, 64) if order.descends else range(8))


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(
    ("rows", "knobs"),
    [
        (700, {"rows_per_block": 1}),
        (700, {"rows_per_block": 4}),
        (40, {"rows_per_block": 4, "stages": 2}),  # ten tiles
    ],
)
def test_column_sums_of_last_rows_first_are_right_of_0_rows_too(rows: int, knobs: dict[str, Any]) -> None:
    """The check calls a kernel with sums over rows at 0 rows as well, where a block writes zeros."""
    problem = problem_for(load("rmsnorm"), shape=(rows, 1024), dtype="bf16", direction="backward")
    schedule = HELD.varied(persistent=16, row_order=RowOrder.DESCENDING, **knobs)
    checked = check_on_cpu(problem, emit(problem, schedule))
    assert checked.ok, checked.summary
    assert "at 0 rows" in checked.summary


@pytest.mark.parametrize(
    ("op", "asked", "knobs", "reason"),
    [
        (
            "rmsnorm",
            {"shape": "4096x1024", "direction": "backward"},
            {"columns": ColumnWay.ATOMIC},
            "blocks of one tile",
        ),
        ("adaln", {"shape": "4x64x256", "direction": "backward"}, {"persistent": 1}, "a batch are taken"),
    ],
)
def test_what_takes_rows_in_its_own_order_is_refused(
    op: str, asked: dict[str, Any], knobs: dict[str, Any], reason: str
) -> None:
    problem = problem_for(load(op), dtype="bf16", **asked)
    schedule = HELD.varied(row_order=RowOrder.DESCENDING, **knobs)
    found = refusal(problem, schedule, H200)
    assert found is not None
    assert reason in found

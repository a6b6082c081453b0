"""Traced runs: every step of every thread, in order, by tensor and element."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.cpu import ProgramRun, build
from normgen.cpu import trace as traced
from normgen.cpu.trace import SHARED, StepKind, TraceStep
from normgen.errors import UsageError
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load

from .cases import ROW_SUM


def row_sum(rows: int, cols: int, *, trace: bool = True) -> ProgramRun:
    x = np.ones((rows, cols + 3), np.float32)[:, :cols]
    total = np.zeros(rows, np.float32)
    found = build(ROW_SUM).run({"x": x, "total": total}, rows=rows, cols=cols, trace=trace)
    assert not found.faults
    np.testing.assert_array_equal(total, np.full(rows, cols, np.float32))
    return found


def test_a_step_names_thread_tensor_and_element_and_each_element_is_read_once_by_its_owner() -> None:
    reads = [step for step in row_sum(5, 70).steps if step.kind is StepKind.READ]
    assert {(s.row, s.col) for s in reads} == {(r, c) for r in range(5) for c in range(70)}
    assert len(reads) == 5 * 70
    for step in reads:
        assert (step.place, step.count) == ("x", 1)
        assert step.block == step.row // 2
        assert step.thread == 32 * (step.row % 2) + step.col % 32


def test_shuffles_say_whose_value_is_taken_and_one_thread_writes_a_row_s_sum() -> None:
    steps = row_sum(2, 32).steps
    sources = [step.source for step in steps if step.kind is StepKind.SHUFFLE and step.thread == 33]
    assert sources == [32 + (1 ^ offset) for offset in (16, 8, 4, 2, 1)]
    written = [step for step in steps if step.kind is StepKind.WRITE]
    assert [(s.thread, s.place, s.col) for s in written] == [(0, "total", 0), (32, "total", 1)]


def test_a_run_keeps_steps_only_where_they_are_asked_for() -> None:
    assert row_sum(2, 32, trace=False).steps == ()


def test_more_steps_than_there_is_room_for_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "CAPACITY", 100)
    with pytest.raises(UsageError, match="at most 100 steps"):
        row_sum(2, 64)


def steps_of(op: str, shape: str, schedule: Schedule, **asked: object) -> tuple[TraceStep, ...]:
    problem = problem_for(load(op), shape=shape, **asked)
    x = np.ones((problem.rows, problem.cols), np.float32)
    program = build(emit(problem, schedule))
    names = {tensor.name: tensor for tensor in problem.passed_tensors}
    arrays = {n: x.copy() if t in problem.elem_tensors else np.ones(problem.cols, np.float32) for n, t in names.items()}
    found = program.run(arrays, rows=problem.rows, cols=problem.cols, scalars={"eps": 1e-6}, trace=True)
    assert not found.faults
    return found.steps


def test_asynchronous_copies_prefetches_waits_and_shared_memory_are_steps_of_their_own() -> None:
    bulk = Schedule(threads_per_row=32, vector=4, hold="shared", copy="bulk", dependent_launch="end")  # type: ignore[arg-type]
    steps = steps_of("rmsnorm", "1x128", bulk, without=["rstd", "weight"])
    copies = [step for step in steps if step.kind is StepKind.COPY]
    assert [(s.thread, s.place, s.col, s.count) for s in copies] == [(0, "x", 0, 128)]
    mine = [step.kind for step in steps if step.thread == 1 and step.place != SHARED]
    assert mine[0] is StepKind.WAIT
    assert mine[-1] is StepKind.TRIGGER
    assert any(step.place == SHARED and step.kind is StepKind.READ for step in steps)
    ahead = Schedule(threads_per_row=32, vector=4, hold="registers", unroll=0, params="prefetched")  # type: ignore[arg-type]
    steps = steps_of("rmsnorm", "1x128", ahead, without=["rstd"])
    assert [(s.place, s.count) for s in steps if s.kind is StepKind.PREFETCH] == [("weight", 128)]

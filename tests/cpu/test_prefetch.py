"""Parameters asked for ahead: what is no value may be asked for before the wait, but only within its tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import FaultKind, build
from normgen.device import target
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.codegen.executors import CpuExecutor
from tests.codegen.matrix import wrong

H200 = target("h200")
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("rmsnorm", "5x4096", {"without": ("rstd",)}),
    ("layernorm", "33x1024", {}),
    ("layernorm", "3x2048", {"stable_parameters": True}),
]


def prefetched(shape: str, op: str = "rmsnorm", **asked: Any) -> tuple[Problem, Schedule]:
    problem = problem_for(load(op), shape=shape, dtype="bf16", **asked)
    return problem, replace(default_schedule(problem, H200), params="prefetched")


def test_kernels_that_ask_ahead_are_right_also_where_they_start_early() -> None:
    cases = [prefetched(shape, op, **asked) for op, shape, asked in ASKED]
    cases += [(problem, replace(schedule, dependent_launch="loads")) for problem, schedule in cases]
    assert [refusal(problem, schedule, H200) for problem, schedule in cases] == [None] * 6
    assert all("using Params = Ahead;" in emit(problem, schedule).text for problem, schedule in cases)
    assert not list(wrong(cases, CpuExecutor(), seed=0))


@pytest.mark.parametrize(
    ("shape", "knobs", "reason"),
    [
        ("4096x1024", {"persistent": 1, "stages": 2}, "ahead of the one row"),
        ("4x4096", {"hold": "shared", "unroll": 1}, "ahead of the one row"),
        ("4x4100", {"vector": 4}, "whole units of 16 bytes"),
    ],
)
def test_what_cannot_be_asked_for_ahead_is_refused(shape: str, knobs: dict[str, Any], reason: str) -> None:
    problem, schedule = prefetched(shape)
    assert reason in str(refusal(problem, replace(schedule, **knobs), H200))


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("weight, 2 * kCols", FaultKind.OUT_OF_BOUNDS),
        ("weight + 1, kCols - 8", FaultKind.MISALIGNED),
        ("weight, kCols - 1", FaultKind.MISALIGNED),
    ],
    ids=["past the end", "off the grid", "half a unit"],
)
def test_asking_for_what_is_not_there_is_a_fault(asked: str, kind: FaultKind) -> None:
    problem, schedule = prefetched("2x1024", without=("rstd",))
    module = emit(problem, schedule)
    wrong_text = module.text.replace("Params::to_l2(weight, kCols)", f"Params::to_l2({asked})")
    assert wrong_text != module.text
    x, weight, y = (np.ones(shape, dtype=ml_dtypes.bfloat16) for shape in ((2, 1024), 1024, (2, 1024)))
    tensors = {"x": x, "weight": weight, "y": y, "rstd": None}
    run = build(replace(module, text=wrong_text)).run(tensors, rows=2, cols=1024, scalars={"eps": 1e-6})
    assert {fault.kind for fault in run.faults} == {kind}

"""Totals: one number summed over rows and columns, by every way to sum over rows, beside sums of columns and alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import SpecError
from normgen.knobs import ColumnWay, Edges, Hold, Params
from normgen.pipeline import emit, planned
from normgen.problem.problem import Problem
from normgen.program.lower import lower
from normgen.program.source import problem_for
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.spec.spec import Spec
from normgen.verify.interpret import interpret
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong_backward
from tests.program.evaluate import evaluate


def spec(name: str, tensors: str, formulas: str) -> Spec:
    return parse(f'name = "{name}"\n[tensors]\nx = "input"\n{tensors}\n[formulas]\n{formulas}\n')


LOSS = spec(  # a total of row values beside one of elements; its gradient starts from two numbers
    "loss",
    'label = { role = "row_input", dtypes = ["i32"] }\nscale = "scalar_parameter"\n'
    'loss = "scalar_output"\ncount = "scalar_output"\nsquares = "scalar_output"',
    'top = "max(x)"\nlse = "top + log(sum(exp(x - top)))"\n'
    'loss = "total(where(label < 0, 0, scale * lse - sum(where(col == label, x, 0))))"\n'
    'count = "total(where(label < 0, 0, 1))"\nsquares = "total(0.5 * x * x)"',
)
GAIN = spec(  # column sums, a learned number inside an exponential, and one that meets every row once
    "gain",
    'weight = "parameter"\ngain = { role = "scalar_parameter", dtypes = ["bf16"] }\nshift = "scalar_parameter"\n'
    'y = "output"\nsize = "scalar_output"',
    'b = "exp(gain) * weight"\nm = "mean(x)"\ny = "(x - m) * b + shift"\nsize = "total(abs(m + shift))"',
)
SUM, DYT = load("full_sum"), load("dyt")  # with references of their own

HELD = Schedule(hold=Hold.REGISTERS, params=Params.LATE, persistent=1, unroll=0)
BLOCK = replace(HELD, threads_per_row=64, vector=1, persistent=2, stages=2)
MASKED = replace(HELD, threads_per_row=16, rows_per_block=4, vector=2, edges=Edges.MASKED)
SCHEDULES = (
    replace(HELD, threads_per_row=8, rows_per_block=16, vector=4),
    replace(HELD, threads_per_row=1, rows_per_block=64, vector=1),
    replace(HELD, threads_per_row=32, cluster=2, vector=1),
    *(replace(BLOCK, columns=columns) for columns in ColumnWay),
    MASKED,
    replace(MASKED, columns=ColumnWay.REGISTER_ATOMIC),
    replace(HELD, threads_per_row=32, cluster=2, vector=1, columns=ColumnWay.REGISTER_ATOMIC),
    replace(HELD, threads_per_row=32, rows_per_block=4, vector=1, columns=ColumnWay.ATOMIC, persistent=0),
    replace(HELD, threads_per_row=64, vector=1, hold=Hold.RELOAD, persistent=1, unroll=2),
)


def problems(direction: str) -> list[Problem]:
    asked = [{"shape": "19x96"}, {"shape": "21x97", "dtype": "bf16", "pitch": 98}, {"shape": "0x33"}]
    asked += [{"shape": "37x65", "pitch": 70, "deterministic": True}]
    asked += [{"shape": "6x64", "accumulate": True}] if direction == "backward" else []
    return [problem_for(s, direction=direction, **a) for a in asked for s in (GAIN, SUM, DYT, LOSS)]


def cases() -> list[Case]:
    """Each schedule with a problem that allows it, in turn of both directions; a general kernel; one untuned."""
    both = [problems("forward"), problems("backward")]
    found: list[Case] = []
    for turn, schedule in enumerate(SCHEDULES):
        listed = [p for p in (*both[turn % 2], *both[1 - turn % 2]) if p.sums_rows]
        found.append(next((p, schedule) for p in listed if refusal(p, schedule, DEVICE) is None))
        both = [p[1:] + p[:1] for p in both]
    # rows that a block has beside the last one must add nothing, neither to totals of elements nor of rows
    idle = [
        (problem_for(s, shape="19x96", direction=d), SCHEDULES[0]) for s, d in ((SUM, "forward"), (DYT, "backward"))
    ]
    found += idle
    general = problem_for(GAIN, shape="7x130", dtype="f16", direction="backward", any_cols=True, align=2)
    untuned = problem_for(LOSS, shape="70x96")
    return [*found, (general, fallback_schedules(general)[-1]), (untuned, default_schedule(untuned, DEVICE))]


def test_totals_are_right_on_the_cpu() -> None:
    """Three calls with one workspace, blocks in other orders: where sums are deterministic, the same bits."""
    found = list(wrong_backward(cases(), CpuExecutor(), seed=0))
    assert not found, report(found, cases())


@pytest.mark.gpu
def test_totals_are_right_on_the_gpu() -> None:
    found = list(wrong_backward(cases(), GpuExecutor(), seed=0))
    assert not found, report(found, cases())


def test_the_texts_compile_for_a_gpu() -> None:
    for problem, schedule in cases()[::3]:
        compile_module(emit(problem, schedule), target("h200").arch)


def test_a_total_of_elements_needs_no_exchange_of_its_rows() -> None:
    problem = problem_for(SUM, shape="64x96")
    plan = planned(problem, default_schedule(problem, target("h200")))
    assert not plan.looks
    assert "total_part[i % kRunningSums] += x_i;" in emit(problem, plan.schedule).text


REFUSALS = {
    'y = "x"\nt = "2 * total(x)"': "is one total",
    'y = "x * t"\nt = "total(x)"': "known once all rows are",
    'y = "x / total(x)"\nt = "total(x)"': "the whole formula of a scalar output",
    'y = "x"\nt = "total(w)"': "values of rows or of elements",
}


@pytest.mark.parametrize(("formulas", "rule"), REFUSALS.items())
def test_what_is_no_total_is_refused(formulas: str, rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        spec("refused", 'w = "parameter"\nt = "scalar_output"\ny = "output"', formulas)


def test_a_total_of_elements_stays_one_where_an_optional_input_is_absent() -> None:
    optional = 'z = { role = "input", optional = true, absent = "0" }\nt = "scalar_output"\nm = "row_output"'
    written = spec("optional", optional, 'm = "mean(x)"\nt = "total(m + z)"')
    x = np.arange(12.0).reshape(3, 4)
    want = x.sum()
    program = lower(written, present=frozenset({"x", "t", "m"}))
    assert evaluate(program, {"x": x})["t"] == interpret(written, {"x": x})["t"] == want
    assert evaluate(lower(written), {"x": x, "z": 0 * x})["t"] == want

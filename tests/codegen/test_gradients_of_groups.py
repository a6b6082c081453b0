"""The gradient of a parameter with one value for each group of columns: sums over rows, of the sums within a group."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import build
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.knobs import ColumnWay
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for, written_program
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from normgen.verify.bounded import U
from normgen.verify.error_model import ColumnSum, sums_of_groups
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong_backward

H200 = target("h200")
ROLES = ("parameter", "batch_parameter", "head_parameter")


def of(role: str, scale: int, shift: int, dtype: str = "f32") -> Spec:
    """A scale of this role for each `scale` columns and a shift for each `shift`, beside a gain for each column."""
    return parse(f"""
        name = "of_groups"
        [tensors]
        x = "input"
        gain = "parameter"
        scale = {{ role = "{role}", group = {scale}, dtypes = ["{dtype}"] }}
        shift = {{ role = "parameter", group = {shift}, optional = true, absent = "0" }}
        alpha = "scalar_parameter"
        y = "output"
        [formulas]
        y = "alpha * x * rsqrt(mean(x * x) + 1e-5) * scale * gain + shift"
        """)


ALONE = """
name = "alone"
[tensors]
x = "input"
weight = { role = "ROLE", group = GROUP }
y = "output"
[formulas]
y = "x * rsqrt(mean(x * x) + 1e-5) * weight"
"""

WALKING = {"hold": "registers", "unroll": 0, "persistent": 1}
TWO, LAST, ATOMIC = "partials_two_kernels", "partials_last_tile", "atomic"
# How blocks add up, where a thread's columns lie, and how many columns a group has.
WAYS: dict[str, tuple[str, int, int, dict[str, Any], dict[str, Any]]] = {
    "two kernels": ("7x4x96", 12, 3, {"threads_per_row": 16, "rows_per_block": 4, "vector": 2, **WALKING}, {}),
    "two kernels, one row a block": ("9x2x240", 40, 48, {"threads_per_row": 64, "vector": 4, **WALKING}, {}),
    "two kernels, groups of one": ("5x4x64", 1, 64, {"threads_per_row": 16, "rows_per_block": 2, **WALKING}, {}),
    "two kernels, more columns than threads": ("4x2x1200", 600, 1200,
                                               {"threads_per_row": 64, "vector": 4, **WALKING}, {}),
    "a masked tail": ("6x2x123", 41, 3, {"threads_per_row": 32, "vector": 2, "edges": "masked", **WALKING},
                      {"pitch": 124}),
    "a peeled head": ("6x2x1001", 13, 77, {"threads_per_row": 64, "vector": 4, "edges": "peel", **WALKING},
                      {"align": 4}),
    "a cluster a row": ("6x2x1024", 512, 64, {"threads_per_row": 64, "cluster": 2, "vector": 4, **WALKING}, {}),
    "atomics of registers": ("7x4x96", 12, 3, {"threads_per_row": 16, "rows_per_block": 4, "vector": 2,
                                               "columns": "register_atomic", **WALKING}, {}),
    "atomics of registers, one row a block": ("9x2x240", 40, 48, {"threads_per_row": 64, "vector": 4,
                                                                  "columns": "register_atomic", **WALKING}, {}),
    "atomics of shared memory": ("7x4x96", 6, 32, {"threads_per_row": 16, "rows_per_block": 4, "vector": 2,
                                                   "columns": "shared_atomic"}, {}),
    "atomics": ("7x4x90", 5, 45, {"threads_per_row": 32, "vector": 2, "columns": "atomic"}, {}),
    "atomics in one order": ("7x4x96", 16, 2, {"threads_per_row": 32, "vector": 1, "persistent": 1, "hold": "reload",
                                               "columns": "atomic"}, {"deterministic": True}),
    "in one order": ("7x4x96", 24, 2, {"threads_per_row": 16, "rows_per_block": 2, "vector": 2, **WALKING},
                     {"deterministic": True}),
    "added to what is there": ("7x4x96", 12, 3, {"threads_per_row": 16, "rows_per_block": 4, "vector": 2, **WALKING},
                               {"accumulate": True}),
    "added by atomics": ("7x4x96", 12, 3, {"threads_per_row": 32, "vector": 1, "columns": "atomic"},
                         {"accumulate": True}),
}  # fmt: skip


def cases() -> list[Case]:
    """Each way with each role."""
    found: list[Case] = []
    for (name, (shape, scale, shift, knobs, asked)), role in product(WAYS.items(), ROLES):
        problem = problem_for(of(role, scale, shift), shape=shape, direction="backward", **asked)
        schedule = Schedule(**knobs)
        if name == "atomics in one order" and role != "parameter":
            continue  # a sum for each batch, by blocks of several of them, has no order
        why = refusal(problem, schedule, DEVICE)
        assert why is None, (name, role, why)
        found.append((problem, schedule))
    return found


def test_gradients_are_right_on_the_cpu() -> None:
    every = cases()
    found = list(wrong_backward(every, CpuExecutor(), seed=0))
    assert not found, report(found, every)


@pytest.mark.gpu
def test_gradients_are_right_on_the_gpu() -> None:
    every = cases()
    found = list(wrong_backward(every, GpuExecutor(), seed=0))
    assert not found, report(found, every)


def test_the_texts_compile_for_a_gpu() -> None:
    for problem, schedule in cases()[:: len(ROLES) + 1]:
        compile_module(emit(problem, schedule), H200.arch)


@pytest.mark.parametrize("role", ROLES)
def test_the_general_kernels_are_right(role: str) -> None:
    problem = problem_for(of(role, 7, 11), shape="5x3x77", dtype="bf16", any_cols=True, align=2, direction="backward")
    general = [(problem, schedule) for schedule in fallback_schedules(problem)]
    found = list(wrong_backward(general, CpuExecutor(), seed=0))
    assert not found, report(found, general)


@pytest.mark.parametrize("role", ROLES)
def test_the_check_runs_calls_of_every_kind(role: str) -> None:
    problem = problem_for(of(role, 20, 40, "bf16"), shape="12x4x120", dtype="bf16", direction="backward")
    found = check_on_cpu(problem, emit(problem, default_schedule(problem, H200)), most_elements=1 << 16)
    assert found.ok, found.summary
    if role != "parameter":
        assert "dscale" in found.verified.own_pitches
        assert "  ok with rows of dscale beyond 2^31 elements" in found.summary


FINISH = """\
  for (int group = blockIdx.x; group < kCols / 15; group += kPitch / kCells) {
    add_partial_group<kThreads, kCells, kTensors, kPitch, 15, kSumVector, kSumVectors>(partials, partial_rows, 0,
        group * 15, warp_sums);
    const float total = total_of_warps<kThreads / 32>(warp_sums, 0);
    if (threadIdx.x == 0) {
      write_element(dweight, group, total);
    }
    __syncthreads();
  }
}
"""
LAST_BLOCK = """\
    // A warp adds the columns of a group.
    for (int group = threadIdx.x / 32; group < kCols / 15; group += kThreads / 32) {
      const float dweight_total = take_group<15>(sums, group * 15);
      if (threadIdx.x % 32 == 0) {
        write_element(dweight, group, dweight_total);
      }
    }
    if (threadIdx.x == 0) *ticket = 0;
"""


@pytest.mark.parametrize(("columns", "text"), [(TWO, FINISH), (ATOMIC, LAST_BLOCK)])
def test_the_text_of_who_adds_the_columns_of_a_group(columns: str, text: str) -> None:
    spec = parse(ALONE.replace("ROLE", "parameter").replace("GROUP", "15"))
    problem = problem_for(spec, shape="64x120", direction="backward", gradients=("weight",))
    schedule = Schedule(threads_per_row=16, rows_per_block=2, vector=2, columns=ColumnWay(columns))
    schedule = schedule if columns == ATOMIC else replace(schedule, **WALKING)
    assert text in emit(problem, schedule).text


# ---- numpy alone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [TWO, "register_atomic", "shared_atomic", ATOMIC])
@pytest.mark.parametrize("role", ROLES)
def test_the_gradient_of_a_group_is_that_of_its_columns_added_up(role: str, columns: str) -> None:
    """By the formula of the derivative, in float64, and with a table of which column is of which group."""
    rng, rows, cols, group, batches = np.random.default_rng(7), 24, 120, 15, 6
    x, dy = rng.standard_normal((2, rows, cols)).astype(np.float32)
    shape = (cols // group,) if role == "parameter" else (batches, cols // group)
    weight = rng.standard_normal(shape).astype(np.float32)
    spec = parse(ALONE.replace("ROLE", role).replace("GROUP", str(group)))
    asked = {} if role == "parameter" else {"batches": batches}
    problem = problem_for(spec, shape=(rows, cols), direction="backward", gradients=("weight",), **asked)
    assert [t.name for t in problem.tensors if t.is_written] == ["dweight"]
    schedule = Schedule(threads_per_row=16, rows_per_block=2, vector=2, columns=ColumnWay(columns))
    schedule = schedule if columns in (ATOMIC, "shared_atomic") else replace(schedule, **WALKING)
    found, given = np.full(shape, np.nan, np.float32), {"dy": dy, "x": x}
    sizes = {"rows": rows, "cols": cols} | ({"rows_per_batch": rows // batches} if asked else {})
    arrays = {t.name: given.get(t.name, weight) for t in problem.tensors if not t.is_written}
    assert build(emit(problem, schedule)).run({**arrays, "dweight": found}, **sizes).faults == ()
    each = dy.astype(np.float64) * x / np.sqrt(np.square(x, dtype=np.float64).mean(axis=1, keepdims=True) + 1e-5)
    want = np.zeros(shape)
    for row, column in np.ndindex(rows, cols):
        place = {
            "parameter": (column // group,),
            "batch_parameter": (row // (rows // batches), column // group),
            "head_parameter": (row % batches, column // group),
        }[role]
        want[place] += each[row, column]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


# ---- what follows from the groups ------------------------------------------------------------------------------


def test_the_program_says_what_is_stored() -> None:
    problem = problem_for(of("batch_parameter", 20, 40), shape="2x4x120", direction="backward")
    text = str(written_program(problem))
    assert "\n  reduce dscale : batches = sum_rows(" in text
    assert "\n  store  dscale = sum_20(dscale)" in text
    assert "\n  store  dshift = sum_40(dshift)" in text
    assert "\n  store  dgain\n" in text
    shapes = {t.name: problem.shape_of(t) for t in problem.tensors if t.is_written}
    assert shapes == {"dx": (8, 120), "dgain": (120,), "dscale": (2, 6), "dshift": (3,), "dalpha": ()}


def test_no_block_is_the_last_at_a_group() -> None:
    problem: Problem = problem_for(of("parameter", 20, 40), shape="48x120", direction="backward")
    schedule = Schedule(threads_per_row=16, rows_per_block=4, vector=2, columns=ColumnWay(LAST), **WALKING)
    assert "the columns of a group may lie in several tiles" in str(refusal(problem, schedule, H200))
    of_columns = problem_for(of("parameter", 20, 40), shape="48x120", direction="backward", gradients=("x", "gain"))
    assert refusal(of_columns, schedule, H200) is None


def test_a_gradient_of_what_no_formula_reads_is_0() -> None:
    """Of an absent statistic's parameter, say: its groups are still as many."""
    spec = parse("""
        name = "unread"
        [tensors]
        x = "input"
        weight = { role = "parameter", group = 4 }
        s = { role = "statistic", optional = true }
        y = "output"
        [formulas]
        s = "sum(x * weight)"
        y = "x * x"
        """)
    problem = problem_for(spec, shape="6x12", direction="backward", without=("s",))
    assert problem.shape_of(problem.tensor("dweight")) == (3,)
    found = check_on_cpu(problem, emit(problem, default_schedule(problem, H200)), most_elements=1 << 12)
    assert found.ok, found.summary


def test_columns_round_independently_and_then_the_sum_of_a_group_rounds() -> None:
    rng, rows, group = np.random.default_rng(8), 256, 32
    terms = rng.standard_normal((rows, 2 * group))
    one = np.ones((1, 2 * group))
    part = ColumnSum(terms.sum(0)[None], np.abs(terms).sum(0)[None], np.square(terms).sum(0)[None], 1e-9 * one)
    found = sums_of_groups(part, rows, group)
    columns = part.bounded(rows)
    assert found.error is not None
    assert columns.error is not None
    np.testing.assert_allclose(found.value, columns.value.reshape(1, 2, group).sum(-1), rtol=1e-12)
    assert (found.error > 1e-9 * group).all()
    assert (found.error < columns.error.reshape(1, 2, group).sum(-1)).all()
    least = np.abs(columns.value).reshape(2, group).sum(axis=1) * U  # one addition as large as all
    assert (found.error > least).all()
    wide = replace(part, size=np.where(np.arange(2 * group) == 3, 4e38, part.size))
    lost = sums_of_groups(wide, rows, group)
    assert np.isinf(np.asarray(lost.error)).tolist() == [[True, False]]

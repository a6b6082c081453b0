"""Kernels of rows side by side on the CPU executor, which sees races and strays, against float64."""

from __future__ import annotations

import itertools

import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.device import TARGETS
from normgen.errors import NothingValidError, UsageError
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import along_axis
from normgen.program.classes import ProgramClass, class_of
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import schedule_from
from normgen.schedule.space import space
from normgen.spec.reader import load
from tests.codegen.lanes.cases import CASES

H200 = TARGETS["h200"]
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
MOST_ELEMENTS = 1 << 14  # of a call


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_rows_side_by_side_are_right_in_every_call_of_a_check(name: str) -> None:
    case = CASES[name]
    assert refusal(case.problem, case.schedule, H200) is None
    checked = check_on_cpu(case.problem, case.module, most_elements=MOST_ELEMENTS)
    assert checked.ok, checked.summary


def test_the_layout_of_a_problem_decides_on_its_class() -> None:
    beside, behind = (problem_for(load("softmax"), shape="64x16", col_stride=n) for n in (8, 1))
    assert (class_of(beside), class_of(behind)) == (ProgramClass.LANES, ProgramClass.ROWS)


def test_a_kernel_of_rows_behind_one_another_does_not_change() -> None:
    problem = problem_for(load("softmax"), shape="64x16")
    assert problem == problem_for(load("softmax"), shape=(64, 16), col_stride=1)
    assert "col_stride" not in problem.arguments()


@pytest.mark.parametrize(
    ("shape", "axis", "rows", "cols", "beside"),
    [
        ("50x33", 0, 33, 50, 33),
        ("2x3x4x5", 1, 40, 3, 20),
        ("2x3x4x5", -4, 60, 2, 60),
        ("2x3x4x5x6", 3, 144, 5, 6),
    ],
)
def test_an_axis_folds_the_sizes_around_it_into_rows(shape: str, axis: int, rows: int, cols: int, beside: int) -> None:
    assert along_axis(shape, axis) == ((rows, cols), beside)


@pytest.mark.parametrize(("shape", "axis"), [("2x3x4", 2), ("2x3x4", -1), ("2x3x1", 1), ("2x3x1x1", -3)])
def test_an_axis_with_nothing_behind_it_is_the_last_one(shape: str, axis: int) -> None:
    sizes, beside = along_axis(shape, axis)
    assert beside == 1
    assert sizes[-1] == (4 if shape == "2x3x4" else 3)


@pytest.mark.parametrize("axis", [3, -4, True])
def test_an_axis_that_a_shape_does_not_have_is_refused(axis: int) -> None:
    with pytest.raises(UsageError, match="has the axes 0 to 2"):
        along_axis("2x3x4", axis)


@pytest.mark.parametrize(
    ("op", "asked", "said"),
    [
        ("softmax", {"col_stride": 5}, "divides the rows"),
        ("softmax", {"col_stride": 4, "any_cols": True}, "knows its columns"),
        ("softmax", {"col_stride": 4, "pitch": 63}, "pitch is at least"),
        ("adaln", {"col_stride": 4}, "no batches, heads or groups"),
        ("quantize_to_fp8_group", {"col_stride": 4, "dtype": "bf16"}, "no batches, heads or groups"),
        ("full_sum", {"col_stride": 4}, "not summed to one number"),
    ],
)
def test_what_rows_side_by_side_do_not_have_is_refused(op: str, asked: dict[str, object], said: str) -> None:
    cols = 256 if op.startswith("quantize") else 16
    with pytest.raises(UsageError, match=said):
        problem_for(load(op), shape=(64, cols), **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("cols", [1, 2, 3, 5])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_rows_of_few_columns_have_a_default(cols: int, direction: str) -> None:
    problem = problem_for(load("layernorm"), shape=(35, cols), col_stride=7, direction=direction)
    assert refusal(problem, default_schedule(problem, H200), H200) is None


@pytest.mark.parametrize("name", CASES)
def test_the_default_and_all_of_the_space_are_legal(name: str) -> None:
    problem = CASES[name].problem
    found = [default_schedule(problem, H200), *space(problem, H200).legal]
    assert len(found) > 1
    assert not [s for s in found if refusal(problem, s, H200)]
    assert emit(problem, found[0]).kernels[0].launch.threads == found[0].threads


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"cluster": 2}, "cluster is a knob of rows of neighbouring elements"),
        ({"edges": "peel"}, "edges is a knob"),
        ({"vector": 8}, "no whole vectors of 8"),
        ({"rows_per_block": 1, "threads_per_row": 16}, "whole warps"),
        ({"rows_per_block": 8, "threads_per_row": 1}, "whole warps"),
        ({"rows_per_block": 32, "threads_per_row": 32}, "share a row of 23 columns"),
        ({"hold": "hybrid"}, "one place"),
        ({"variance": "guarded", "rows_per_block": 64}, "each warp must know"),
        ({"persistent": 1}, "walks no others"),
    ],
)
def test_a_refusal_says_why(knobs: dict[str, object], said: str) -> None:
    problem = problem_for(load("layernorm"), shape="48x23", col_stride=12)
    plain = CASES["held, lanes combine"].schedule.varied(rows_per_block=16, threads_per_row=2)
    assert refusal(problem, plain, H200) is None
    assert said in (refusal(problem, schedule_from(knobs, plain), H200) or "")


def test_sums_that_no_block_holds_are_refused_with_a_way_out() -> None:
    problem = problem_for(load("layernorm"), shape=(256, 65536), col_stride=64, direction="backward")
    with pytest.raises(NothingValidError) as refused:
        default_schedule(problem, H200)
    assert "sums of 65536 columns take" in (refused.value.hint or "")
    assert "copy" in (refused.value.hint or "")


def test_sizes_behind_an_axis_are_not_zero_and_those_in_front_may_be() -> None:
    with pytest.raises(UsageError, match="the sizes behind an axis are at least 1"):
        along_axis("3x7x0", 1)
    for device in H200, TARGETS["t4"]:
        for op, direction in itertools.product(("softmax", "layernorm"), ("forward", "backward")):
            rows, beside = along_axis("0x96x3", 1)
            problem = problem_for(load(op), shape=rows, col_stride=beside, direction=direction)
            assert emit(problem, default_schedule(problem, device)).kernels


def test_a_pitch_below_the_columns_of_all_rows_side_by_side_is_refused() -> None:
    with pytest.raises(UsageError, match=r"at least cols \* col_stride") as refused:
        problem_for(load("softmax"), shape=(18, 40), col_stride=6, pitch=100)
    assert refused.value.received == "pitch 100, cols 40, 6 rows side by side"

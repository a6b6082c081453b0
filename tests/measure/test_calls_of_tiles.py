"""The calls that a product of matrices is checked by, and what they show of wrong kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.module import Module
from normgen.device import target
from normgen.measure.calls import MOST_ELEMENTS, KernelCall, calls
from normgen.measure.check import CHECKED_ELEMENTS
from normgen.measure.cpu_check import check_on_cpu, has_compiler
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import load
from tests.verify.contraction import linear

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
SIZES = (44, 24, 36)
BACKWARD = [("linear", "x"), ("linear", "w"), ("torch_linear", "up"), ("saved", "x"), ("saved", "w")]


def problem(name: str, gradient: str = "", **asked: Any) -> Problem:
    backward: dict[str, Any] = {"direction": "backward", "gradients": (gradient,)} if gradient else {}
    return problem_for(linear.spec_of(name), shape=SIZES[:2], inner=SIZES[2], **backward, **asked)


def module_of(found: Problem) -> Module:
    return emit(found, default_schedule(found, target("h200")))


def made(found: Problem) -> list[KernelCall]:
    return list(calls(found, module_of(found), sm_count=4))


def test_rows_alone_vary_where_cols_and_inner_are_fixed() -> None:
    found = made(problem("linear"))
    assert {(call.problem.cols, call.problem.inner) for call in found} == {SIZES[1:]}
    tile = module_of(problem("linear")).kernels[0].launch.tiles[0][1]
    assert {1, tile - 1, tile, tile + 1} < {call.problem.rows for call in found}
    assert {name for call in found for name in call.pitches} == {"x", "w", "y"}
    assert {name for call in found if call.is_far for name in call.pitches} == {"x", "w", "y"}
    assert any(call.order for call in found)


def test_every_size_varies_around_its_tile_where_all_are_free() -> None:
    found = made(problem("linear", any_cols=True))
    launch = module_of(problem("linear", any_cols=True)).kernels[0].launch
    for source, tile in launch.tiles:
        assert {1, tile - 1, tile, tile + 1} < {getattr(call.problem, source) for call in found}
    assert {1, 7, 8, 9, 15, 16, 17, 31, 32, 33} < {call.problem.inner for call in found}
    assert any(call.problem.rows == call.problem.cols == call.problem.inner for call in found)
    assert all(call.problem.pitch >= call.problem.cols for call in found)


def test_the_gradient_of_a_matrix_is_a_sum_of_any_number_of_rows() -> None:
    found = {call.problem.rows for call in made(problem("linear", "w"))}
    assert {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33} < found


@needs_compiler
@pytest.mark.parametrize("any_cols", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("name", "gradient"), [*((name, "") for name in linear.FORMULAS), *BACKWARD])
def test_a_right_kernel_passes_all_calls(name: str, gradient: str, dtype: str, any_cols: bool) -> None:
    found = problem(name, gradient, any_cols=any_cols, dtype=dtype)
    checked = check_on_cpu(found, module_of(found))
    assert checked.ok, checked.summary
    assert checked.verified is not None
    assert checked.verified.unbounded <= 0.2  # of gates of huge rows
    assert max(checked.error.values()) <= 1
    assert max(checked.error.values()) > 0 or dtype == "bf16"  # roundings of storing are no error


def wrong(module: Module, old: str, new: str) -> Module:
    assert old in module.text, module.text
    return replace(module, text=module.text.replace(old, new))


@needs_compiler
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fmaf(x_part[i][e], w_part[j], ", "fmaf(x_part[0][e], w_part[j], "),
        ("for (int k0 = 0; k0 < kInner; k0 += kTileK) {", "for (int k0 = 0; k0 + kTileK < kInner; k0 += kTileK) {"),
        ("inside = m0 + m < rows && (kWholeK || k0 + k < kInner);", "inside = m0 + m < rows;"),
    ],
)
def test_a_wrong_kernel_is_called_wrong(old: str, new: str) -> None:
    found = problem("linear")
    checked = check_on_cpu(found, wrong(module_of(found), old, new))
    assert not checked.ok


def test_a_gpu_makes_every_call_of_a_product_of_4096_which_is_too_long_for_the_cpu_executor() -> None:
    problem = problem_for(load("linear"), shape="4096x4096", inner=4096)
    module = emit(problem, default_schedule(problem, target("h200")))
    near = [call for call in calls(problem, module, sm_count=132) if not call.is_far]
    assert len(near) > 5
    assert all(call.elements_on_gpu(CHECKED_ELEMENTS) <= MOST_ELEMENTS for call in near)
    assert any(call.elements > MOST_ELEMENTS for call in near)


def test_where_nothing_is_multiplied_a_call_takes_a_gpu_what_it_takes_the_cpu_executor() -> None:
    problem = problem_for(load("softmax"), shape="512x1000")
    module = emit(problem, default_schedule(problem, target("h200")))
    assert all(call.elements_on_gpu(CHECKED_ELEMENTS) == call.elements for call in calls(problem, module, sm_count=132))

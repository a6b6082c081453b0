"""A kernel of any columns takes null for optional inputs: each stands for a number then, and has no gradient."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any

import pytest

from normgen.cpu import find_compiler
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.fallback import fallback_schedules
from normgen.spec.reader import load, parse
from normgen.verify import check, make_inputs, make_outputs
from tests.codegen.executors import CpuExecutor, new_workspace

CASES: dict[str, dict[str, Any]] = {
    "layernorm": {"op": "layernorm", "optional": ("weight", "bias"), "dtypes": {"weight": "f32"}, "align": 4},
    "a_second_residual": {
        "op": "add_layernorm",
        "optional": ("x_bias", "residual2", "weight"),
        "without": ("mean", "rstd"),
    },
    "a_scalar_that_is_infinite": {"op": "add_rmsnorm_to_fp8_token", "optional": ("weight", "scale_ub")},
    "backward": {"op": "rmsnorm", "optional": ("weight",), "direction": "backward"},
    "backward_of_a_bias_that_is_not_read": {"op": "layernorm", "optional": ("weight", "bias"), "direction": "backward"},
    "added_to_gradients": {
        "op": "layernorm",
        "optional": ("weight", "bias"),
        "direction": "backward",
        "accumulate": True,
    },
    "gradient_of_a_residual": {"op": "add_layernorm", "optional": ("x_bias", "residual2"), "direction": "backward"},
}
TOTAL = """
name = "scaled"
[tensors]
x = "input"
alpha = { role = "scalar_parameter", optional = true, absent = "1" }
beta = { role = "parameter", optional = true, absent = "alpha" }
y = "output"
[formulas]
y = "x * alpha + beta"
"""

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def general(op: str, without: tuple[str, ...] = (), **more: Any) -> Problem:
    asked = {"shape": "5x77", "dtype": "bf16", "any_cols": True, "align": 2, "without": without}
    return problem_for(load(op), **asked | more)


def subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, count) for count in range(len(names) + 1))


@needs_compiler
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_null_stands_for_a_number_and_has_no_gradient(case: dict[str, Any]) -> None:
    case = dict(case)
    optional, never = case.pop("optional"), case.pop("without", ())
    full = general(without=never, **case)
    kernels = [emit(full, schedule) for schedule in fallback_schedules(full)]
    for built in CpuExecutor().build(kernels):
        for absent in subsets(optional):
            stored = {name: dtype for name, dtype in case.get("dtypes", {}).items() if name not in absent}
            problem = general(**{**case, "without": (*never, *absent), "dtypes": stored})
            inputs = make_inputs(problem, seed=len(absent))
            outputs = make_outputs(problem, seed=1, inputs=inputs)
            workspace = new_workspace(built.module, problem.rows)
            fault = built.run(inputs, outputs, workspace=workspace)
            assert not fault, (absent, fault)
            verdict = check(problem, inputs, outputs)
            assert verdict.ok, (absent, str(verdict))


def test_only_numbers_and_gradients_that_can_be_left_out_may_be_null() -> None:
    spec = parse(TOTAL)
    shape: dict[str, Any] = {"shape": "4x64", "any_cols": True}
    assert [t.name for t in problem_for(spec, **shape).tensors if t.may_be_null] == ["alpha"]
    assert [t.name for t in problem_for(spec, **shape, direction="backward").tensors if t.may_be_null] == []
    assert [t.name for t in problem_for(spec, shape="4x64").tensors if t.may_be_null] == []


@pytest.mark.parametrize(("number", "may"), [("0.1", False), ("0.5", True), ("inf", True)])
def test_what_a_dtype_does_not_hold_must_not_be_null(number: str, may: bool) -> None:
    spec = parse(TOTAL.replace('absent = "alpha"', f'absent = "{number}"'))
    assert problem_for(spec, shape="4x64", dtype="bf16", any_cols=True).tensor("beta").may_be_null is may

"""Which rows a problem is checked on: what would hide other rows in a sum over all rows is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from normgen.verify import ALL, check, default_families, finite_to, make_inputs, make_outputs, prepare
from normgen.verify.rows import as_large_as, draw_rows
from tests.verify import made, schedules

UNMASKED = tuple(name for name in ALL if name != "masked")
FINITE = tuple(name for name in UNMASKED if name not in ("inf", "nan"))


def backward(op: Spec, rows: int = 40, dtype: str = "f32", gradients: tuple[str, ...] | None = None) -> Problem:
    return problem_for(op, shape=(rows, 48), dtype=dtype, direction="backward", gradients=gradients)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_norms_take_every_finite_row_and_an_unbounded_sum_leaves_out_what_would_hide_the_rest(dtype: str) -> None:
    assert default_families(backward(made.LAYERNORM, dtype=dtype)) == FINITE
    assert default_families(backward(made.L2NORM, dtype=dtype)) == FINITE
    assert default_families(backward(made.GATED, dtype=dtype)) == FINITE
    hiding = {"huge", "step_noise", "large_steps", "large_constant"}  # db = Σ dy |x|, and bf16 rounds thousands by 4
    hiding |= {"f32": {"fine_noise"}, "bf16": {"sparse_steps"}}.get(dtype, set())
    assert default_families(backward(made.BENT, dtype=dtype)) == tuple(n for n in FINITE if n not in hiding)
    unbounded = {"huge", "masked"}  # the exponentials of rows near the largest number have no bound, but in f16
    fitting = tuple(n for n in ALL if n not in ("inf", "nan") and (dtype == "f16" or n not in unbounded))
    assert default_families(backward(made.WARM_SOFTMAX, dtype=dtype)) == fitting


@pytest.mark.parametrize(("group", "cols", "hides"), [(600, 1200, True), (1200, 2400, True), (7, 2002, False)])
def test_a_sum_of_many_columns_leaves_out_what_hides_a_row_of_its_group(group: int, cols: int, hides: bool) -> None:
    text = f'x = "input"\nw = {{ role = "parameter", group = {group} }}\ny = "output"\n[formulas]\ny = "x * w"'
    spec = parse(f'name = "scaled"\n[tensors]\n{text}')
    found = default_families(problem_for(spec, shape=(8, cols), direction="backward"))
    assert "normal" in found
    assert ("large_mean" not in found) is hides  # many equal terms round by more than a row of normal ones adds
    assert "large_mean" in default_families(problem_for(spec, shape=(8, cols)))


def test_without_a_sum_over_rows_every_row_counts() -> None:
    assert default_families(backward(made.WARM_SOFTMAX, gradients=("x",))) == ALL
    assert default_families(problem_for(made.BENT, shape=(40, 48))) == UNMASKED


def test_masked_rows_are_for_formulas_that_take_the_rows_maximum() -> None:
    for op in (made.SOFTMAX, made.LOG_SOFTMAX, made.ROW_MAX_SUM):
        assert default_families(problem_for(op, shape=(40, 48))) == ALL
    for op in (made.LAYERNORM, made.RMSNORM, made.ROW_SUM):
        assert default_families(problem_for(op, shape=(40, 48))) == UNMASKED


def test_what_is_left_out_is_told_but_not_what_was_never_asked_for() -> None:
    assert make_inputs(backward(made.LAYERNORM)).left_out == ("inf", "nan")
    assert make_inputs(problem_for(made.LAYERNORM, shape=(40, 48))).left_out == ()
    assert make_inputs(backward(made.LAYERNORM), families=("normal",)).left_out == ()


def test_a_contract_goes_before_the_rule() -> None:
    promised = replace(made.WARM_SOFTMAX, accuracy_rows=("normal", "huge", "nan"))
    assert default_families(backward(promised)) == ("normal", "huge")


@pytest.mark.parametrize("op", [made.WARM_SOFTMAX, made.BENT], ids=lambda op: op.name)
def test_a_lost_normal_row_shows_in_the_sums_of_the_default_rows(op: Spec) -> None:
    problem = backward(op)
    inputs = make_inputs(problem)
    outputs = make_outputs(problem)
    columns = [part for part in prepare(problem, inputs).parts if part.rows[0] < 0]
    lost = inputs.families.index("normal")
    inputs.arrays["dy"][lost] = 0
    without = {part.tensor.name: part.want for part in prepare(problem, inputs).parts if part.rows[0] < 0}
    inputs = make_inputs(problem)
    assert columns
    for part in columns:
        outputs.arrays[part.tensor.name][...] = part.want[0]
    assert not any(check(problem, inputs, outputs).tensor(part.tensor.name).bad for part in columns)
    for part in columns:
        outputs.arrays[part.tensor.name][...] = without[part.tensor.name][0]
    found = check(problem, inputs, outputs)
    assert all(found.tensor(part.tensor.name).bad > 4 for part in columns)
    assert np.isfinite(found.tensor(columns[0].tensor.name).max_ratio)


@pytest.mark.parametrize(
    ("op", "dtype", "ends"),
    [
        (made.LAYERNORM, "f32", ("x: 2^57",)),  # 4096 squares of 2^58 are 2^128
        (made.RMSNORM, "bf16", ("x: 2^57",)),
        (made.RMSNORM, "f16", ()),  # no f16 is that large
        (made.ROW_SUM, "f32", ("x: 2^115",)),
        (made.GATED, "f32", ("x: 2^57",)),
    ],
    ids=lambda given: getattr(given, "name", None),
)
def test_up_to_which_size_rows_are_finite_is_found_from_the_bounds(op: Spec, dtype: str, ends: tuple[str, ...]) -> None:
    assert finite_to(problem_for(op, shape=(8, 4096), dtype=dtype)) == ends


def test_up_to_that_size_all_schedules_are_finite_and_beyond_they_differ() -> None:
    """Rows of 1e25 of a layernorm: 0 by two passes, NaN by a sum of squares that overflows."""
    assert finite_to(problem_for(made.LAYERNORM, shape=(8, 4096))) == ("x: 2^57",)

    def is_nan(exponent: int) -> dict[str, bool]:
        rows = draw_rows((as_large_as(exponent),) * 4, 4096, problem.dtype, np.random.default_rng(0))
        with np.errstate(all="ignore"):
            given = {"x": rows.astype(np.float32), "weight": np.ones(1, np.float32), "bias": np.zeros(1, np.float32)}
            run = {v: schedules.layernorm(given, 1e-5, v, schedules.lanes) for v in ("two_pass", "guarded", "shifted")}
        return {name: bool(np.isnan(found["y"]).any()) for name, found in run.items()}

    problem = problem_for(made.LAYERNORM, shape=(4, 4096))
    assert not any(is_nan(57).values())
    assert set(is_nan(83).values()) == {False, True}

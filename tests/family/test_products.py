"""The products of matrices that ship against references by hand: specs, derived gradients, kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import Program, build_many, find_compiler
from normgen.device import target
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for, written_program
from normgen.spec.reader import list_specs, load
from normgen.verify import Inputs, make_inputs, make_outputs, prepare
from normgen.verify.bounded import within_cells
from normgen.verify.check import Part
from normgen.verify.contraction.sides import in_order
from tests.family.products import BACKWARD, FORWARD
from tests.family.references import Array
from tests.family.test_batches_of_products import OPS as IN_BATCHES
from tests.program.evaluate import evaluate

H200 = target("h200")
KERNELS = [("linear", "x"), ("linear", "w"), ("linear_add", "x"), ("linear_add", "w")]  # gradients of one kernel


def problem(op: str, dtype: str, gradient: str = "", *, bare: bool = False) -> Problem:
    """Rows for two of each family, no size of whole tiles; `bare`: every optional tensor is absent."""
    spec = load(op)
    without = [t.name for t in spec.tensors if t.optional] if bare else []
    asked = {"direction": "backward", "gradients": [gradient]} if gradient else {}
    cols = 3 * spec.group or 43
    return problem_for(spec, shape=(60, cols), inner=37, dtype=dtype, without=without, **asked)


CASES = [
    *(problem(op, "bf16") for op in FORWARD if "bf16" in load(op).inputs[0].dtypes),
    *(problem(op, "f32", bare=True) for op in FORWARD),
    *(problem(op, dtype, gradient) for op, gradient in KERNELS for dtype in ("f32", "bf16")),
]


def named(case: Problem) -> str:
    return f"{case.spec.name}-{case.direction}-{'-'.join(case.gradients or ())}-{case.dtype.name}"


@cache
def inputs_of(case: Problem) -> Inputs:
    return make_inputs(case)


def wanted(case: Problem) -> Iterator[tuple[Part, Array]]:
    """Each part of what a check expects, and the same by hand."""
    inputs = inputs_of(case)
    tensors = {t.name: in_order(inputs.arrays[t.name], t).astype(np.float64) for t in case.tensors if not t.is_written}
    tensors |= {
        name: np.zeros((1, 1)) for name in ("x", "w") if name not in tensors
    }  # what this gradient does not read
    with np.errstate(all="ignore"):
        if case.direction == "forward":
            values = FORWARD[case.spec.name](tensors, inputs.scalars)
        elif case.gradients == ("x",):
            values = {"dx": tensors["dy"] @ tensors["w"].T}
        else:
            values = {"dw": tensors["x"].T @ tensors["dy"]}
        for part in prepare(case, inputs).parts:
            value = within_cells(values[part.tensor.name], part.tensor.dtype)
            yield part, value.reshape(-1, part.want.shape[1])[part.rows]


def test_every_product_that_ships_has_references_by_hand() -> None:
    # Scales of groups have no gradient, and that of a loss whose logits are not stored is a spec of its own.
    assert {op for op in FORWARD if not load(op).group and "cross_entropy" not in op} == set(BACKWARD)
    assert {op for op in list_specs() if load(op).has_inner} == {*FORWARD, *IN_BATCHES}


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_check_expects_what_is_written_by_hand(case: Problem) -> None:
    """Wherever float32 has a bound: within a thousandth of it."""
    for part, value in wanted(case):
        is_known = np.isfinite(part.bound) | ~np.isfinite(part.want)
        assert is_known.mean() > 0.5
        with np.errstate(all="ignore"):
            near = np.abs(value - part.want) <= 1e-3 * part.bound + 1e-12 * np.abs(value)
        same = near | (value == part.want) | (np.isnan(value) & np.isnan(part.want))
        # Where the model knows no more than that it is no finite number.
        same |= ~np.isfinite(value) & ~np.isfinite(part.want) & np.isinf(part.bound)
        assert np.all(same | ~is_known), part.tensor.name


def test_a_statistic_of_a_result_is_a_number_in_the_rows_that_are() -> None:
    """One column that is not finite would make those of all rows NaN, and a check of these would see nothing."""
    for part in prepare(case := problem("linear_add_rms", "f32"), inputs_of(case)).parts:
        if part.tensor.name == "rstd":
            assert np.isfinite(part.want).mean() > 0.8
            assert np.nanmedian(part.bound / part.want) < 1e-4


@pytest.fixture(scope="module")
def kernels() -> dict[Problem, Program]:
    """All kernels in few compiler calls."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    built = build_many([emit(case, default_schedule(case, H200)) for case in CASES])
    return dict(zip(CASES, built, strict=True))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_kernel_computes_what_is_written_by_hand(case: Problem, kernels: dict[Problem, Program]) -> None:
    inputs, outputs, sizes = inputs_of(case), make_outputs(case), case.sizes
    arrays = {**inputs.arrays, **outputs.arrays}
    run = kernels[case].run(arrays, rows=sizes.rows, cols=sizes.cols, inner=sizes.inner, scalars=inputs.scalars)
    assert not run.faults
    parts = tuple(replace(part, want=value) for part, value in wanted(case))
    verdict = replace(prepare(case, inputs), parts=parts).check(outputs)
    assert verdict.ok, verdict.summary()


@pytest.mark.parametrize("op", BACKWARD)
def test_derived_gradients_are_those_that_are_written_by_hand(op: str) -> None:
    """Of every input and parameter, one by one, in float64; saved values are the forward's. Casts round to float32."""
    spec, rng = load(op), np.random.default_rng(0)
    rows, inner, cols = 5, 7, 4
    sizes = {"rows": rows, "inner": inner, "cols": cols}
    given = [t for t in spec.tensors if not t.role.is_written]
    tensors = {t.name: rng.standard_normal([sizes[axis] for axis in t.axes or t.kind.axes]) for t in given}
    tensors |= dict.fromkeys(("dy", "dh"), rng.standard_normal((rows, cols)))
    tensors["drstd"] = rng.standard_normal(rows)
    scalars = dict(spec.scalars)
    formulas = str([formula.text for formula in spec.formulas])
    known, by_hand = tensors | FORWARD[op](tensors, scalars), BACKWARD[op](tensors, scalars)
    assert set(by_hand) >= {f"d{t.name}" for t in given}
    for tensor in given:
        asked = problem_for(spec, shape=(rows, cols), inner=inner, direction="backward", gradients=[tensor.name])
        found = evaluate(written_program(asked), known, scalars)[f"d{tensor.name}"]
        rtol, atol = (1e-5, 1e-6) if "cast(" in formulas else (1e-11, 1e-12)
        np.testing.assert_allclose(found, by_hand[f"d{tensor.name}"], rtol=rtol, atol=atol)

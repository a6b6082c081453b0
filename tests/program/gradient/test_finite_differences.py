"""Derived gradients against differences of the formula itself: programs, specs, single functions."""

from __future__ import annotations

import re

import numpy as np
import pytest
import sympy as sp

from normgen.program.functions import expm1, log1p, sign
from normgen.program.gradient.derivative import derivative
from normgen.program.gradient.monomials import expression
from normgen.program.lower import lower
from normgen.spec.reader import load, parse
from normgen.spec.spec import Sizes, Spec
from tests.program.evaluate import evaluate_expr
from tests.program.gradient.backward_cases import CASES, data_for, finite_differences, run_backward
from tests.program.programs import ELEM, x
from tests.samples import CORE

MADE_UP_FORMULAS = {
    "l2norm": 'y = "x * rsqrt(sum(x*x) + eps)"',
    "gated": 'y = "x * rsqrt(mean(x*x) + eps) * w * sigmoid(g)"',
    "temperature": 'z = "x * w"\ny = "exp(z - max(z)) / sum(exp(z - max(z)))"',
    "centred": 'c = "x - mean(x)"\ny = "c / sqrt(mean(c*c) + eps) * (1 + w)"',
    "tanh": 'y = "tanh(x * w)"',
    "swish": 'h = "x * rsqrt(mean(x**2) + eps)"\ny = "h * sigmoid(h) * g"',
}


def made_up(name: str) -> Spec:
    formulas = MADE_UP_FORMULAS[name]
    tensors = [
        f'{t} = "{role}"' for t, role in (("g", "input"), ("w", "parameter")) if t in re.findall(r"\w+", formulas)
    ]
    scalars = "\n[scalars]\neps = 1e-5" if "eps" in formulas else ""
    listed = "\n".join(['x = "input"', *tensors, 'y = "output"'])
    return parse(f'name = "{name}"\nsummary = "made up"\n[tensors]\n{listed}{scalars}\n[formulas]\n{formulas}\n')


def specs() -> dict[str, Spec]:
    shipped = {name: load(name) for name in CORE}
    with_outputs = {n: spec for n, spec in shipped.items() if spec.outputs}
    return {**with_outputs, **{f"made up: {name}": made_up(name) for name in MADE_UP_FORMULAS}}


@pytest.mark.parametrize("without_optional", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", list(specs()))
def test_every_spec_differentiates(name: str, recompute: bool, without_optional: bool) -> None:
    spec = specs()[name]
    present = {t.name for t in spec.tensors if not (without_optional and t.optional)}
    p = lower(spec, present=frozenset(present))
    inputs = data_for(p)
    rng = np.random.default_rng(8)
    dys = {t.name: np.asarray(rng.normal(size=t.kind.shape(Sizes(3, 5)))) for t in spec.outputs if t.name in present}
    tensors = tuple(load.name for load in p.loads if spec.tensor(load.name).has_gradient)
    saved = () if recompute else tuple(name for name in spec.saved if name in present)
    got = run_backward(p, inputs, dys, saved=saved, wrt=tensors)
    assert set(got) == {f"d{name}" for name in tensors}
    for tensor in tensors:
        want = finite_differences(p, inputs, dys, tensor)
        np.testing.assert_allclose(got[f"d{tensor}"], want, rtol=1e-7, atol=1e-7, err_msg=tensor)


@pytest.mark.parametrize("case", CASES)
def test_gradients_match_finite_differences(case: str) -> None:
    p, saved, _, _ = CASES[case]
    inputs = data_for(p)
    rng = np.random.default_rng(7)
    dys = {store.tensor: rng.normal(size=(3, 5)) for store in p.stores if store.kind is ELEM}
    got = run_backward(p, inputs, dys, saved=saved)
    assert set(got) == {f"d{n}" for n in inputs}
    for name in inputs:
        want = finite_differences(p, inputs, dys, name)
        np.testing.assert_allclose(got[f"d{name}"], want, rtol=1e-7, atol=1e-7 * (1 + np.abs(want).max()), err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_every_program_differentiates_the_same_for_every_subset_of_inputs(case: str) -> None:
    p, saved, _, _ = CASES[case]
    inputs = data_for(p)
    dys = {store.tensor: np.ones((3, 5)) for store in p.stores if store.kind is ELEM}
    everything = run_backward(p, inputs, dys, saved=saved)
    for name in inputs:
        if not everything[f"d{name}"].any():
            continue  # the formula does not read this input
        alone = run_backward(p, inputs, dys, saved=saved, wrt=(name,))
        assert list(alone) == [f"d{name}"]
        np.testing.assert_allclose(alone[f"d{name}"], everything[f"d{name}"], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "expr",
    [
        sp.exp(x * 2),
        sp.log(x),
        log1p(2 * x**2),
        expm1(-2 * x),
        sp.tanh(x) ** 3,
        sp.erf(2 * x),
        sp.sqrt(1 + x * x),
        1 / (1 + sp.exp(-3 * x)),
        1 / (2 + sp.exp(x)),
        sp.Abs(x - 1),
        sp.Max(x, 0.25, x**2),
        sp.Min(x, 1 - x),
        sign(x) * x,
        x**x,
        x ** sp.Rational(-5, 2) * sp.exp(-x) * (x + 1),
    ],
)
@pytest.mark.parametrize("at", [0.3, 0.7, 1.9])
def test_derivatives_match_central_differences(expr: sp.Expr, at: float) -> None:
    poly = derivative(expr, x)
    got = sum(float(n) * float(evaluate_expr(expression(t), {x: np.asarray(at)})) for t, n in poly.items())
    h = 1e-6
    ahead, behind = (float(evaluate_expr(expr, {x: np.asarray(at + d)})) for d in (h, -h))
    assert got == pytest.approx((ahead - behind) / (2 * h), rel=1e-7, abs=1e-8)

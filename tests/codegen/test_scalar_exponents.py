"""x ** p of a scalar p: kernels in both directions, the limits of its gradient, its bound, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from normgen import kernel, verify
from normgen.choice.first import default_schedule
from normgen.errors import SpecError, UsageError
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.program.lower import lower
from normgen.program.source import problem_for
from normgen.spec.reader import parse
from normgen.verify.bounded import REARRANGED, Bounded
from normgen.verify.derivative_proof import proven_program
from normgen.verify.error_model import Float32Error
from tests.codegen.layouts import DEVICE

POWERNORM = parse("""
    name = "power_norm"
    [tensors]
    x = "input"
    y = "output"
    [scalars]
    p = { default = 3.0, ranges = [[1, 4]] }
    [formulas]
    y = "x / (mean(abs(x) ** p) + 1e-3) ** (1 / p)"
    """)
FOCAL = parse("""
    name = "focal"
    [tensors]
    x = "input"
    label = { role = "row_input", dtypes = ["i64"] }
    loss = "row_output"
    [scalars]
    gamma = { default = 2.0, ranges = [[0.5, 4]] }
    [formulas]
    top = "max(x)"
    logp = "take(x, label) - top - log(sum(exp(x - top)))"
    loss = "-(1 - exp(logp)) ** gamma * logp"
    """)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("spec", [POWERNORM, FOCAL], ids=lambda spec: spec.name)
def test_kernels_pass_the_check(spec: object, direction: str) -> None:
    problem = problem_for(spec, shape="5x40", dtype="f32", direction=direction)
    found = check_on_cpu(problem, emit(problem, default_schedule(problem, DEVICE)), most_elements=1 << 13)
    assert found.ok, found.summary


def test_a_kernel_takes_any_exponent_at_run_time() -> None:
    x = np.random.default_rng(2).standard_normal((6, 48)).astype(np.float32)
    norm = kernel(POWERNORM, shape=x.shape, device="cpu")
    for p in (1.0, 1.5, 2.0, 3.7):
        want = x / (np.mean(np.abs(x.astype(np.float64)) ** p, -1, keepdims=True) + 1e-3) ** (1 / p)
        np.testing.assert_allclose(norm(x, p=p), want, rtol=3e-6)


def test_the_gradient_is_that_of_focal_loss() -> None:
    rng = np.random.default_rng(4)
    x, label = rng.standard_normal((5, 9)), np.array([0, 3, 8, 4, 4])
    shifted = np.exp(x - x.max(-1, keepdims=True))
    share = shifted / shifted.sum(-1, keepdims=True)
    own = np.take_along_axis(share, label[:, None], -1)
    is_own = np.arange(9) == label[:, None]
    slope = 2 * (1 - own) * np.log(own) * own - (1 - own) ** 2  # d loss / d log p
    backward = kernel(FOCAL, shape=x.shape, direction="backward", device="cpu")
    found = backward(dloss=np.ones(5, np.float32), x=x.astype(np.float32), label=label)
    np.testing.assert_allclose(found, slope * (is_own - share), atol=2e-6)


@pytest.mark.parametrize("p", [0.7, 2.0, -1.3])
def test_a_power_keeps_within_its_bound(p: float) -> None:
    """Of bases that are off, too: float32's power of any base within its error lies within the bound of the power."""
    rng = np.random.default_rng(8)
    x = rng.uniform(0.01, 30, (1, 400))
    off = x * rng.uniform(0, 1e-4, x.shape)
    model = Float32Error(cols=400)
    plain = model.call("**", Bounded(x), Bounded(np.asarray(p)))
    loose = model.call("**", Bounded(x, off), Bounded(np.asarray(p), np.asarray(1e-6)))
    assert np.all(plain.error <= 9 * 2.0**-24 * np.abs(plain.value) + 2.0**-149)
    assert np.all(plain.error >= 8 * 2.0**-24 * np.abs(plain.value))
    for sign in (-1, 1):
        for dp in (-1e-6, 1e-6):
            assert np.all(np.abs((x + sign * off) ** (p + dp) - loose.value) <= loose.error)
    assert np.all(loose.error <= REARRANGED * (np.abs(p) * off / x + np.abs(np.log(x)) * 1e-6 + 1e-6) * loose.value)


def test_an_infinite_power_of_an_exact_base_is_exact() -> None:
    base = Bounded(np.asarray([[np.inf, 2.0]]), np.asarray([[0.0, 0.0]]))
    found = Float32Error(cols=2).call("**", base, Bounded(np.asarray(1.5)))
    assert np.isfinite(found.error).all()


def test_the_power_of_minus_infinity_is_that_of_c() -> None:
    """numpy takes the power by 0.5 for a square root, which is NaN there."""
    spec = parse('name = "t"\n[tensors]\nx = "input"\ny = "output"\n[scalars]\np = 0.5\n[formulas]\ny = "x ** p"')
    x = np.array([[-np.inf, np.inf, -0.0, -1.0]], np.float32)
    for p in (0.5, 1.5, -0.5, 3.0):
        want = np.array(
            [[math.inf if p > 0 else 0.0, math.inf if p > 0 else 0.0, 0.0 if p > 0 else math.inf, math.nan]]
        )
        want = np.array([[-math.inf, math.inf, 0.0, -1.0]]) if p == 3.0 else want
        np.testing.assert_array_equal(kernel(spec, shape=x.shape, device="cpu")(x, p=p), want)
        np.testing.assert_array_equal(verify.interpret(spec, {"x": x}, {"p": p})["y"], want)


def test_nothing_is_said_of_a_base_that_may_be_negative() -> None:
    """Nor is it called NaN, as the exact power of a small negative number is: a kernel may find a number."""
    base = Bounded(np.asarray([[1e-9, -1e-9]]), np.asarray([[1e-8, 1e-8]]))
    with np.errstate(invalid="ignore"):
        found = Float32Error(cols=2).call("**", base, Bounded(np.asarray(0.5)))
    assert np.isinf(found.error).all()
    assert np.isfinite(found.value).all()


@pytest.mark.parametrize("formula", ["x ** w", "x ** mean(x)", "x ** q", "x ** exp(p)", "x ** (p * col)"])
def test_an_exponent_that_is_no_scalar_names_what_to_write(formula: str) -> None:
    tensors = 'x = "input"\nw = "parameter"\nq = "scalar_input"\ny = "output"\n[scalars]\np = 2.0'
    text = f'name = "t"\n[tensors]\n{tensors}\n[formulas]\ny = "abs({formula}) + w * q * p"'
    with pytest.raises(SpecError, match=r"an exponent is made of numbers and of \[scalars\]") as refused:
        parse(text)
    assert "exp(p * log(x))" in str(refused.value.hint)


def test_a_power_of_negative_numbers_is_a_number_where_the_exponent_is_whole() -> None:
    spec = parse('name = "t"\n[tensors]\nx = "input"\ny = "output"\n[scalars]\np = 3.0\n[formulas]\ny = "x ** p"')
    x = np.array([[-2.0, 0.0, 3.0, -1.5]], np.float32)
    found = kernel(spec, shape=x.shape, device="cpu")
    np.testing.assert_allclose(found(x, p=3.0), x.astype(np.float64) ** 3, rtol=1e-6)
    assert np.isnan(found(x, p=0.5)).tolist() == [[True, False, False, True]]
    backward = kernel(spec, shape=x.shape, direction="backward", device="cpu")
    np.testing.assert_allclose(backward(np.ones_like(x), x, p=3.0), 3 * x.astype(np.float64) ** 2, rtol=1e-6)


def test_a_program_shows_a_power_as_it_is_written() -> None:
    assert "= sum(Abs(x)**p)" in str(lower(POWERNORM))
    assert "= -logp*(1 - exp(logp))**gamma" in str(lower(FOCAL))


def test_the_gradient_by_a_scalar_exponent_is_refused_as_that_of_any_scalar() -> None:
    with pytest.raises(UsageError, match="gradients by the inputs and parameters that are there"):
        problem_for(POWERNORM, shape="4x8", direction="backward", gradients=("p",))


def test_the_reference_is_the_power_in_float64() -> None:
    x = np.linspace(0.1, 4, 8)[None]
    tensors = 'x = "input"\ny = "output"\n[scalars]\np = 1.0'
    spec = parse(f'name = "t"\n[tensors]\n{tensors}\n[formulas]\ny = "x ** (p - 0.5)"')
    np.testing.assert_allclose(verify.interpret(spec, {"x": x}, {"p": 3.0})["y"], x**2.5)
    assert proven_program(problem_for(spec, shape="4x8", direction="backward"))

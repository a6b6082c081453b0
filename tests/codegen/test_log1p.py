"""log1p and expm1: kernels in both directions, the digits of small numbers, their bounds, what the check sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from normgen import kernel
from normgen.choice.first import default_schedule
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.program.source import problem_for, written_program
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from normgen.verify.bounded import Bounded, U
from normgen.verify.derivative_proof import prove
from normgen.verify.error_model import Float32Error
from normgen.verify.interpret import Array
from tests.codegen.layouts import DEVICE


def _spec(name: str, y: str) -> Spec:
    return parse(f'name = "{name}"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "{y}"\n')


WAYS = ("forward", "backward")
SOFTPLUS = _spec("softplus", "maximum(x, 0) + log1p(exp(-abs(x)))")
ELU = _spec("elu", "where(x > 0, x, expm1(x))")
SYMLOG = _spec("symlog", "sign(x) * log1p(abs(x)) * rsqrt(mean(log1p(x * x)) + 1e-3)")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("spec", [SOFTPLUS, ELU, SYMLOG], ids=lambda spec: spec.name)
def test_kernels_pass_the_check(spec: Spec, direction: str, dtype: str) -> None:
    problem = problem_for(spec, shape="5x40", dtype=dtype, direction=direction)
    found = check_on_cpu(problem, emit(problem, default_schedule(problem, DEVICE)), most_elements=1 << 13)
    assert found.ok, found.summary
    if direction == "backward":
        assert {slope.tensor for slope in prove(problem, written_program(problem))} == {"x"}


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        (SOFTPLUS, "log1pf(", "logf(1.0f + "),
        (ELU, "expm1f(x_i)", "(expf(x_i) - 1.0f)"),
    ],
    ids=lambda one: one.name if isinstance(one, Spec) else "",
)
def test_the_check_sees_that_a_formula_written_out_loses_digits(spec: Spec, right: str, wrong: str) -> None:
    problem = problem_for(spec, shape="64x40", dtype="f32")
    module = emit(problem, default_schedule(problem, DEVICE))
    assert right in module.text
    found = check_on_cpu(problem, replace(module, text=module.text.replace(right, wrong)), most_elements=1 << 14)
    assert not found.ok


def test_both_keep_the_digits_of_small_numbers_and_are_right_at_the_ends() -> None:
    x = np.array([[1e-30, 1e-7, -1e-7, -0.4, -1, -2, 0, 3, 1e30, np.inf, np.nan, 100, -100, -np.inf]], np.float32)
    for name, want in {"log1p": np.log1p, "expm1": np.expm1}.items():
        run, slope = (kernel(_spec(name, f"{name}(x)"), shape=x.shape, device="cpu", direction=d) for d in WAYS)
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            expected = want(wide).astype(np.float32)
            gradient = (1 / (1 + wide) if name == "log1p" else np.exp(wide)).astype(np.float32)
        np.testing.assert_allclose(run(x), expected, rtol=2.0**-23)
        np.testing.assert_allclose(slope(dy=np.ones_like(x), x=x), gradient, rtol=3e-7)


def _called(name: str, x: Bounded) -> tuple[Array, Array]:
    """The value of a function, and its bound."""
    found = Float32Error(cols=x.value.shape[-1]).call(name, x)
    assert found.error is not None
    return found.value, found.error


@pytest.mark.parametrize(("name", "exact"), [("log1p", math.log1p), ("expm1", math.expm1)])
def test_each_keeps_within_its_bound_which_is_tight(name: str, exact: Callable[[float], float]) -> None:
    """Of arguments that are off, too: of any within the error the value is within the bound, at its ends by little."""
    rng = np.random.default_rng(8)
    x = np.concatenate([rng.uniform(-0.9, 3, 200), rng.uniform(-1e-3, 1e-3, 200)])[None]
    off = np.abs(x) * rng.uniform(0, 1e-4, x.shape)
    of = np.vectorize(exact)
    (value, plain), (_, loose) = (_called(name, Bounded(x, *error)) for error in ((), (off,)))
    assert np.all(plain >= 2 * U * np.abs(value))
    assert np.all(plain <= 2 * U * np.abs(value) + 2.0**-149)
    apart = [np.abs(of(x + by * off) - value) for by in (-1, 0.5, 1)]
    assert all(np.all(one <= loose) for one in apart)
    assert np.all(loose - plain <= 1.01 * np.max(apart, 0))


def test_nothing_is_said_of_the_logarithm_of_what_may_be_0() -> None:
    x = Bounded(np.array([[-1.0, -0.5, -1 + 1e-6, -1 - 1e-8]]), np.array([[1e-7, 1e-7, 1e-6, 1e-7]]))
    with np.errstate(divide="ignore", invalid="ignore"):
        value, error = _called("log1p", x)
        assert np.isinf(error).tolist() == [[True, False, True, True]]
        assert np.isfinite(value).all()  # else the check would demand -inf, or NaN
        assert np.isneginf(_called("log1p", Bounded(np.array([[-1.0]])))[0])


def test_a_branch_that_is_not_taken_has_no_slope_where_1_plus_x_is_0() -> None:
    spec = parse(
        'name = "guarded"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\n'
        'v = "log1p(x)"\nw = "log1p(x * x)"\ny = "where(x > -1, v + w, 0)"\n'
    )
    problem = problem_for(spec, shape="5x40", dtype="f32", direction="backward")
    found = check_on_cpu(problem, emit(problem, default_schedule(problem, DEVICE)), most_elements=1 << 13)
    assert found.ok, found.summary
    x = np.array([[-3.0, -1.0, 0.0, 1.0]], np.float32)
    run = kernel(spec, shape=x.shape, device="cpu", direction="backward")
    np.testing.assert_allclose(run(dy=np.ones_like(x), x=x), [[0, 0, 1, 1.5]], rtol=1e-6)

"""The numpy evaluator against numpy itself."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.errors import ProgramError
from normgen.program.ir import COLS, Load, Map, Reduce, Store
from normgen.program.monoid import MONOIDS, ONLINE_SOFTMAX, SUM, WELFORD, symbol
from normgen.spec.spec import Kind
from tests.program.evaluate import evaluate, evaluate_expr, reduce_axis
from tests.program.programs import COL, ELEM, ROW, layernorm, log_softmax, program, softmax, x

ROWS = st.integers(1, 4)
LENGTHS = st.integers(1, 37)
SEEDS = st.integers(0, 2**32 - 1)


def test_layernorm_is_the_textbook_formula() -> None:
    rng = np.random.default_rng(1)
    data, weight, bias = rng.normal(3, 2, (4, 37)), rng.normal(size=37), rng.normal(size=37)
    got = evaluate(layernorm(), {"x": data, "weight": weight, "bias": bias}, {"eps": 1e-5})
    mean, var = data.mean(1), data.var(1)
    want = (data - mean[:, None]) / np.sqrt(var + 1e-5)[:, None] * weight + bias
    np.testing.assert_allclose(got["y"], want, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(got["mean"], mean, rtol=1e-14)
    np.testing.assert_allclose(got["rstd"], 1 / np.sqrt(var + 1e-5), rtol=1e-14)


def test_softmax_and_log_softmax_agree() -> None:
    data = np.random.default_rng(2).normal(0, 20, (3, 50))
    y = evaluate(softmax(), {"x": data})["y"]
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-14)
    np.testing.assert_allclose(np.exp(evaluate(log_softmax(), {"x": data})["y"]), y, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, cols=LENGTHS, seed=SEEDS)
def test_welford_gives_count_mean_and_squared_deviations(rows: int, cols: int, seed: int) -> None:
    data = np.random.default_rng(seed).normal(100, 1, (rows, cols))
    n, mean, m2 = reduce_axis(WELFORD, [data], 1)
    assert (n == cols).all()
    np.testing.assert_allclose(mean[:, 0], data.mean(1), rtol=1e-13)
    np.testing.assert_allclose(m2[:, 0], cols * data.var(1), rtol=1e-10, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, cols=LENGTHS, seed=SEEDS)
def test_online_softmax_gives_the_maximum_and_the_sum_of_exponentials(rows: int, cols: int, seed: int) -> None:
    data = np.random.default_rng(seed).normal(0, 30, (rows, cols))
    top, total = reduce_axis(ONLINE_SOFTMAX, [data], 1)
    np.testing.assert_array_equal(top[:, 0], data.max(1))
    np.testing.assert_allclose(total[:, 0], np.exp(data - data.max(1, keepdims=True)).sum(1), rtol=1e-12)


@pytest.mark.parametrize(("name", "want"), [("sum", 8.0), ("max", 7.0), ("absmax", 9.0)])
def test_single_value_monoids(name: str, want: float) -> None:
    data = np.array([[1.0, -9.0, 7.0, 3.0, 6.0]])
    (got,) = reduce_axis(MONOIDS[name], [data], 1)
    assert got.tolist() == [[want]]


@pytest.mark.parametrize(("name", "want"), [("sum", 0.0), ("max", -np.inf), ("absmax", 0.0)])
def test_an_empty_row_gives_the_identity(name: str, want: float) -> None:
    (got,) = reduce_axis(MONOIDS[name], [np.empty((2, 0))], 1)
    assert got.tolist() == [[want], [want]]


def test_column_reductions_and_row_maps_have_their_shapes() -> None:
    total = symbol("total")
    p = program(
        "shapes",
        Load("x", ELEM),
        Load("w", COL),
        Reduce(("total",), ROW, SUM, (x * symbol("w"),)),
        Map("half", ROW, total / 2 + COLS),
        Reduce(("columns",), COL, SUM, (x * total,)),
        Store("half", "half", ROW),
        Store("columns", "columns", COL),
    )
    data, w = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, 4.0])
    got = evaluate(p, {"x": data, "w": w})
    np.testing.assert_array_equal(got["half"], (data @ w) / 2 + 3)
    np.testing.assert_array_equal(got["columns"], data.T @ (data @ w))


def test_a_store_that_accumulates_adds_to_the_tensor() -> None:
    p = program("double", Load("x", ELEM), Map("y", ELEM, 2 * x), Store("y", "y", ELEM, accumulate=True))
    got = evaluate(p, {"x": np.ones((2, 2)), "y": np.full((2, 2), 10.0)})
    assert got["y"].tolist() == [[12.0, 12.0], [12.0, 12.0]]
    assert "store  y += y" in str(p)


def test_float32_stays_float32() -> None:
    got = evaluate(softmax(), {"x": np.ones((2, 3))}, dtype=np.float32)
    assert got["y"].dtype == np.float32


def test_keep_all_returns_the_steps() -> None:
    got = evaluate(layernorm(affine=False), {"x": np.array([[1.0, 3.0]])}, {"eps": 0.0}, keep_all=True)
    assert got["var"].tolist() == [1.0]
    assert got["mean"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        (sp.tanh(x), np.tanh(0.5)),
        (sp.erf(x), 0.5204998778130465),
        (sp.Max(x, 2), 2.0),
        (sp.Min(x, 2), 0.5),
        (sp.Abs(-x), 0.5),
        (x ** sp.Rational(3, 2), 0.5**1.5),
        (x**-2, 4.0),
        (sp.log(x), np.log(0.5)),
    ],
)
def test_functions_have_their_values(expr: sp.Expr, want: float) -> None:
    assert evaluate_expr(expr, {x: np.asarray(0.5)}) == pytest.approx(want, rel=1e-15)


def test_missing_inputs_and_unknown_functions_are_named() -> None:
    with pytest.raises(ProgramError, match=r"every scalar .*\n.*eps"):
        evaluate(layernorm(affine=False), {"x": np.ones((1, 1))})
    with pytest.raises(ProgramError, match=r"every tensor .*\n.*weight"):
        evaluate(layernorm(), {"x": np.ones((1, 1))}, {"eps": 1.0})
    with pytest.raises(ProgramError, match="besselj cannot be evaluated"):
        evaluate_expr(sp.besselj(0, x), {x: np.asarray(1.0)})
    with pytest.raises(ProgramError, match="elem load"):
        evaluate(program("none", Load("w", Kind.COL)), {"w": np.ones(3)})

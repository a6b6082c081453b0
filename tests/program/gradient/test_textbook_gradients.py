"""Derived gradients are the textbooks': their formulas, their reductions and looks, their properties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.program.gradient.differentiate import differentiate
from normgen.program.ir import looks, stage_of, used_exprs
from tests.program import programs as forward
from tests.program.evaluate import evaluate
from tests.program.gradient.backward_cases import CASES, SCALARS, Array, data_for, run_backward, scaled_by_its_mean
from tests.program.programs import ELEM, mean, x


@pytest.mark.parametrize("case", CASES)
def test_row_reductions_stages_and_looks_are_the_textbooks(case: str) -> None:
    p, saved, row_reductions, stages = CASES[case]
    backward = differentiate(p, saved=saved)
    assert len(backward.row_reduces) == row_reductions
    stage = stage_of(backward)
    assert max(stage[n] for r in backward.row_reduces for n in r.names) == stages
    assert looks(backward) == stages + 1


def test_layernorm_reads_like_the_textbook() -> None:
    assert str(differentiate(forward.layernorm(), saved=("mean", "rstd"))) == (
        "program layernorm_backward()\n"
        "  load   dy : elem\n"
        "  load   x : elem\n"
        "  load   weight : col\n"
        "  load   mean : row\n"
        "  load   rstd : row\n"
        "  map    dxhat : elem = dy*weight\n"
        "  map    xhat : elem = (x - mean)*rstd\n"
        "  reduce dxhat_xhat_sum : row = sum(dxhat*xhat)\n"
        "  reduce dxhat_sum : row = sum(dxhat)\n"
        "  map    dxhat_xhat_mean : row = dxhat_xhat_sum/cols\n"
        "  map    dxhat_mean : row = dxhat_sum/cols\n"
        "  map    dx : elem = (dxhat - dxhat_mean - dxhat_xhat_mean*xhat)*rstd\n"
        "  store  dx\n"
        "  reduce dweight : col = sum_rows(dy*xhat)\n"
        "  store  dweight\n"
        "  reduce dbias : col = sum_rows(dy)\n"
        "  store  dbias"
    )


def test_softmax_reads_like_the_textbook() -> None:
    assert str(differentiate(forward.softmax(), saved=("y",))) == (
        "program softmax_backward()\n"
        "  load   dy : elem\n"
        "  load   y : elem\n"
        "  reduce dy_y_sum : row = sum(dy*y)\n"
        "  map    dx : elem = (dy - dy_y_sum)*y\n"
        "  store  dx"
    )


@pytest.mark.parametrize("case", [c for c in CASES if "layernorm" in c])
def test_a_centred_term_is_never_expanded(case: str) -> None:
    """x*rstd - mean*rstd cancels: outside its own definition, mean occurs only as mean - x."""
    p, saved, _, _ = CASES[case]
    for statement in differentiate(p, saved=saved).statements:
        for expr in used_exprs(statement):
            holders = [e for e in expr.atoms(sp.Add, sp.Mul) if {mean, -mean} & set(e.args)]
            assert all(e in (x - mean, -mean) for e in holders), f"{expr}"


# -- hand-written references -----------------------------------------------------------------------------------


def layernorm_by_hand(i: dict[str, Array], dy: Array) -> dict[str, Array]:
    centred = i["x"] - i["x"].mean(1, keepdims=True)
    r = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + SCALARS["eps"])
    xhat, wdy = centred * r, dy * i.get("weight", 1.0)
    dx = r * (wdy - wdy.mean(1, keepdims=True) - xhat * (wdy * xhat).mean(1, keepdims=True))
    return {"dx": dx, "dweight": (dy * xhat).sum(0), "dbias": dy.sum(0)}


def rmsnorm_by_hand(i: dict[str, Array], dy: Array) -> dict[str, Array]:
    r = 1 / np.sqrt((i["x"] ** 2).mean(1, keepdims=True) + SCALARS["eps"])
    xhat, wdy = i["x"] * r, dy * i["weight"]
    return {"dx": r * (wdy - xhat * (wdy * xhat).mean(1, keepdims=True)), "dweight": (dy * xhat).sum(0)}


def softmax_of(data: Array) -> Array:
    e = np.exp(data - data.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def softmax_by_hand(i: dict[str, Array], dy: Array) -> dict[str, Array]:
    t = i.get("t", np.ones(i["x"].shape[1]))
    y = softmax_of(i["x"] * t)
    dz = y * (dy - (dy * y).sum(1, keepdims=True))
    return {"dx": dz * t, "dt": (dz * i["x"]).sum(0)}


def log_softmax_by_hand(i: dict[str, Array], dy: Array) -> dict[str, Array]:
    return {"dx": dy - softmax_of(i["x"]) * dy.sum(1, keepdims=True)}


def l2norm_by_hand(i: dict[str, Array], dy: Array) -> dict[str, Array]:
    norm = np.sqrt((i["x"] ** 2).sum(1, keepdims=True) + SCALARS["eps"])
    y = i["x"] / norm
    return {"dx": (dy - y * (dy * y).sum(1, keepdims=True)) / norm}


def gated_norm_by_hand(i: dict[str, Array], dy: Array) -> dict[str, Array]:
    r = 1 / np.sqrt((i["x"] ** 2).mean(1, keepdims=True) + SCALARS["eps"])
    gate = 1 / (1 + np.exp(-i["g"]))
    xhat, d = i["x"] * r, dy * i["w"] * gate
    dg = dy * xhat * i["w"] * gate * (1 - gate)
    return {
        "dx": r * (d - xhat * (d * xhat).mean(1, keepdims=True)),
        "dw": (dy * xhat * gate).sum(0),
        "dg": dg if i["g"].ndim == 2 else dg.sum(0),
    }


Reference = Callable[[dict[str, Array], Array], dict[str, Array]]
BY_HAND: list[tuple[str, Reference]] = [
    ("layernorm", layernorm_by_hand),
    ("rmsnorm", rmsnorm_by_hand),
    ("softmax", softmax_by_hand),
    ("log_softmax", log_softmax_by_hand),
    ("l2norm", l2norm_by_hand),
    ("gated norm", gated_norm_by_hand),
]


@pytest.mark.parametrize(
    ("case", "reference"),
    [(c, r) for prefix, r in BY_HAND for c in CASES if c.startswith(prefix) and ", then" not in c],
)
def test_gradients_match_the_formula_written_by_hand(case: str, reference: Reference) -> None:
    p, saved, _, _ = CASES[case]
    inputs = data_for(p, rows=9, cols=65, seed=3)
    dy = np.random.default_rng(4).normal(size=(9, 65))
    got, want = run_backward(p, inputs, {"y": dy}, saved=saved), reference(inputs, dy)
    for name, value in got.items():
        np.testing.assert_allclose(value, want[name], rtol=1e-11, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e4])
@pytest.mark.parametrize("saved", [("mean", "rstd"), ("rstd",), ()])
def test_float32_error_is_no_larger_than_the_textbooks(offset: float, saved: tuple[str, ...]) -> None:
    """The textbook form evaluated in float32 on the same inputs sets the error; twice it leaves room for luck."""
    rng = np.random.default_rng(5)
    rows, cols = 64, 256
    inputs = {n: v.astype(np.float32) for n, v in data_for(forward.layernorm(), rows, cols).items()}
    inputs["x"] = (inputs["x"] + offset).astype(np.float32)
    dy = rng.normal(size=(rows, cols)).astype(np.float32)
    exact = layernorm_by_hand({n: v.astype(np.float64) for n, v in inputs.items()}, dy.astype(np.float64))
    textbook = layernorm_by_hand(inputs, dy)
    steps = evaluate(forward.layernorm(), inputs, SCALARS, keep_all=True)
    loads = {**inputs, "dy": dy, **{n: steps[n].astype(np.float32) for n in saved}}
    got = evaluate(differentiate(forward.layernorm(), saved=saved), loads, SCALARS, dtype=np.float32)
    for name in ("dx", "dweight"):
        assert got[name].dtype == np.float32
        assert np.abs(got[name] - exact[name]).max() <= 2 * np.abs(textbook[name] - exact[name]).max()


def test_extreme_gates_give_finite_gradients() -> None:
    """exp(-g) overflows float32 at g = -100; s*(1-s) does not."""
    p = forward.gated_norm(ELEM)
    inputs = {n: v.astype(np.float32) for n, v in data_for(p).items()}
    inputs["g"] = np.full((3, 5), -100, np.float32)
    got = evaluate(differentiate(p), {**inputs, "dy": np.ones((3, 5))}, SCALARS, dtype=np.float32)
    assert all(np.isfinite(v).all() for v in got.values())


def test_a_zero_row_factor_divides_nothing() -> None:
    p = scaled_by_its_mean()
    inputs = {"x": np.array([[1.0, -1.0, 2.0, -2.0, 0.0]])}
    dy = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    got = run_backward(p, inputs, {"y": dy})
    np.testing.assert_allclose(got["dx"], [[(1 - 2 + 6 - 8) / 5] * 5], rtol=1e-15)


# -- properties ------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 4), cols=st.integers(1, 40), seed=st.integers(0, 2**32 - 1), scale=st.floats(-3, 3))
def test_layernorm_dx_sums_to_zero_for_a_constant_weight(rows: int, cols: int, seed: int, scale: float) -> None:
    """With a constant weight, a shift of the row changes nothing, so each row of dx sums to 0."""
    p = forward.layernorm()
    inputs = {**data_for(p, rows, cols, seed), "weight": np.full(cols, scale)}
    dy = np.random.default_rng(seed + 1).normal(size=(rows, cols))
    dx = run_backward(p, inputs, {"y": dy}, saved=("mean", "rstd"))["dx"]
    np.testing.assert_allclose(dx.sum(1), 0, atol=1e-12 * cols * (1 + np.abs(dx).max()))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cols=st.integers(1, 40))
def test_softmax_dx_sums_to_zero(seed: int, cols: int) -> None:
    inputs = data_for(forward.softmax(), 3, cols, seed)
    dy = np.random.default_rng(seed + 1).normal(size=(3, cols))
    dx = run_backward(forward.softmax(), inputs, {"y": dy}, saved=("y",))["dx"]
    np.testing.assert_allclose(dx.sum(1), 0, atol=1e-13 * cols)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(-4, 4))
def test_gradients_are_linear_in_dy(seed: int, scale: float) -> None:
    p = forward.gated_norm(ELEM)
    inputs = data_for(p, seed=seed)
    a, b = np.random.default_rng(seed).normal(size=(2, 3, 5))
    first, second, both = (run_backward(p, inputs, {"y": dy}) for dy in (a, b, a + scale * b))
    for name in both:
        np.testing.assert_allclose(both[name], first[name] + scale * second[name], rtol=1e-9, atol=1e-10)

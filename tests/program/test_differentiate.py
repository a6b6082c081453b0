"""Derived backward programs against hand-written formulas, finite differences and the textbooks' structure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.errors import ProgramError
from normgen.program.derivative import derivative
from normgen.program.differentiate import backward_tensors, differentiate
from normgen.program.evaluate import evaluate, evaluate_expr
from normgen.program.ir import Kind, Load, Map, Reduce, RowProgram, Store, looks, stage_of, used_exprs
from normgen.program.lower import lower
from normgen.program.monoid import ABSMAX, MAX, WELFORD, symbol
from normgen.program.monomials import expression
from normgen.spec import Spec
from normgen.spec_reader import list_specs, load, parse
from tests.program import programs as forward
from tests.program.programs import COL, ELEM, ROW, bias, eps, mean, program, rsqrt, rstd, total, values, weight, x

Array = np.ndarray[Any, Any]
SCALARS = {"eps": 0.01}
LAYERNORM_STATISTICS = forward.layernorm().statements[3:8]


def data_for(p: RowProgram, rows: int = 3, cols: int = 5, seed: int = 0) -> dict[str, Array]:
    """Random inputs; tensors called w are positive."""
    rng = np.random.default_rng(seed)
    shapes = {ELEM: (rows, cols), ROW: (rows,), COL: (cols,)}
    drawn = {load.name: rng.normal(size=shapes[load.kind]) for load in p.loads}
    return {n: np.abs(v) + 0.5 if n == "w" else v for n, v in drawn.items()}


def run_backward(p: RowProgram, inputs: dict[str, Array], dys: dict[str, Array], **options: Any) -> dict[str, Array]:
    """The derived program in float64, its saved values taken from the forward in float64."""
    steps = evaluate(p, inputs, SCALARS, keep_all=True)
    saved = {n: steps[n] for n in options.get("saved", ())}
    return evaluate(differentiate(p, **options), {**inputs, **saved, **{f"d{n}": dy for n, dy in dys.items()}}, SCALARS)


def finite_differences(p: RowProgram, inputs: dict[str, Array], dys: dict[str, Array], of: str) -> Array:
    """Central differences of Σ dy * y over every entry of one input, in long double where there is one."""

    def loss(step: float, index: tuple[int, ...]) -> np.longdouble:
        moved = {n: v.astype(np.longdouble) for n, v in inputs.items()}
        moved[of][index] += step
        out = evaluate(p, moved, SCALARS, dtype=np.longdouble)
        return sum(((out[n] * dy).sum() for n, dy in dys.items()), np.longdouble(0))

    h = 1e-5
    want = np.empty_like(inputs[of])
    for index in np.ndindex(want.shape):
        want[index] = (loss(h, index) - loss(-h, index)) / (2 * h)
    return want


# -- made-up programs ------------------------------------------------------------------------------------------


def residual_norm() -> RowProgram:
    h, s = values("h s")
    return program(
        "residual_norm",
        Load("x", ELEM),
        Load("residual", ELEM),
        Load("w", COL),
        Map("h", ELEM, x + symbol("residual")),
        total("s", h * h),
        Map("rstd", ROW, rsqrt(s / forward.COLS + eps)),
        Map("y", ELEM, h * rstd * symbol("w")),
        Store("h", "h", ELEM),
        Store("y", "y", ELEM),
        scalars=("eps",),
    )


def with_layernorm(name: str, *statements: Any, outputs: tuple[str, ...] = ("y",)) -> RowProgram:
    return program(
        name,
        Load("x", ELEM),
        Load("weight", COL),
        Load("bias", COL),
        *LAYERNORM_STATISTICS,
        *statements,
        *(Store(n, n, ELEM) for n in outputs),
        scalars=("eps",),
    )


AFFINE = (x - mean) * rstd * weight + bias
z, s, m, k = values("z s m k")


def silu_layernorm() -> RowProgram:
    return with_layernorm("silu", Map("z", ELEM, AFFINE), Map("y", ELEM, z * forward.sigmoid(z)))


def gelu_layernorm() -> RowProgram:
    gelu = z * (1 + sp.erf(z / sp.sqrt(2))) / 2
    return with_layernorm("gelu", Map("z", ELEM, AFFINE), Map("y", ELEM, gelu))


def relu_layernorm() -> RowProgram:
    return with_layernorm("relu", Map("y", ELEM, sp.Max(AFFINE, 0)))


def layernorm_then_softmax() -> RowProgram:
    steps = (Map("z", ELEM, AFFINE), total("m", z, MAX), total("s", sp.exp(z - m)))
    return with_layernorm("ln_softmax", *steps, Map("y", ELEM, sp.exp(z - m) / s))


def two_outputs() -> RowProgram:
    xhat = (x - mean) * rstd
    steps = (Map("y", ELEM, xhat * weight), Map("y2", ELEM, xhat * bias + x))
    return with_layernorm("two_outputs", *steps, outputs=("y", "y2"))


def skewed() -> RowProgram:
    xhat = (x - mean) * rstd
    return with_layernorm("skewed", total("k", xhat**3), Map("y", ELEM, xhat * (1 + (k / forward.COLS) ** 2)))


def variance_times_x() -> RowProgram:
    return with_layernorm("variance_times_x", Map("y", ELEM, x * forward.var + mean * weight + bias))


def tanh_then_l2norm() -> RowProgram:
    w = symbol("w")
    return program(
        "tanh_l2",
        Load("x", ELEM),
        Load("w", COL),
        Map("z", ELEM, sp.tanh(x * w)),
        total("s", z * z),
        Map("y", ELEM, z * rsqrt(s + eps)),
        Store("y", "y", ELEM),
        scalars=("eps",),
    )


def weighted_variance() -> RowProgram:
    w, v = values("w v")
    return program(
        "weighted_variance",
        Load("x", ELEM),
        Load("w", COL),
        total("s", x * w),
        Map("m", ROW, s / forward.COLS),
        total("v", w * (x - m) ** 2),
        Map("y", ELEM, (x - m) * rsqrt(v + eps)),
        Store("y", "y", ELEM),
        scalars=("eps",),
    )


def l1norm_of_row_scaled() -> RowProgram:
    r = symbol("r")
    return program(
        "l1",
        Load("x", ELEM),
        Load("r", ROW),
        total("s", sp.Abs(x)),
        Map("y", ELEM, r * x / (s + eps)),
        Store("y", "y", ELEM),
        scalars=("eps",),
    )


def scaled_by_its_mean() -> RowProgram:
    """The row factor may be 0: nothing may divide by it."""
    return program(
        "scaled", Load("x", ELEM), *forward.layernorm().statements[3:5], Map("y", ELEM, x * mean), Store("y", "y", ELEM)
    )


def variance_as_output() -> RowProgram:
    """d var_sum reaches dx as a bare multiple of x - mean."""
    centred = (x - mean) ** 2
    return with_layernorm("variance_output", Map("y", ELEM, centred * sp.Rational(3, 2) + x * weight + bias))


# forward program, saved, row reductions, stages of the backward program; its looks follow from the stages
CASES: dict[str, tuple[RowProgram, tuple[str, ...], int, int]] = {
    "layernorm": (forward.layernorm(), ("mean", "rstd"), 2, 1),
    "layernorm, rstd saved": (forward.layernorm(), ("rstd",), 3, 2),
    "layernorm, nothing saved": (forward.layernorm(), (), 4, 2),
    "layernorm, plain": (forward.layernorm(affine=False), ("mean", "rstd"), 2, 1),
    "layernorm, plain from y": (forward.layernorm(affine=False), ("y", "rstd"), 2, 1),
    "rmsnorm": (forward.rmsnorm(), ("rstd",), 1, 1),
    "rmsnorm, nothing saved": (forward.rmsnorm(), (), 2, 1),
    "softmax": (forward.softmax(), ("y",), 1, 1),
    "softmax, nothing saved": (forward.softmax(), (), 3, 2),
    "softmax with temperature": (forward.softmax(x * symbol("t"), "t"), ("y",), 1, 1),
    "softmax with temperature, nothing saved": (forward.softmax(x * symbol("t"), "t"), (), 3, 2),
    "softmax with named steps": (forward.softmax_with_names(), ("y",), 1, 1),
    "softmax with named steps, statistics saved": (forward.softmax_with_names(), ("top", "s"), 1, 1),
    "log_softmax": (forward.log_softmax(), ("y",), 1, 1),
    "log_softmax, nothing saved": (forward.log_softmax(), (), 3, 2),
    "log_softmax, log-sum-exp saved": (forward.log_softmax_lse(), ("lse",), 1, 1),
    "log_softmax by log-sum-exp": (forward.log_softmax_lse(), ("y",), 1, 1),
    "l2norm": (forward.l2norm(), (), 2, 1),
    "l2norm by division": (forward.l2norm_divided(), ("norm",), 1, 1),
    "l2norm from y": (forward.l2norm_divided(), ("y", "norm"), 1, 1),
    "gated norm, gate per element": (forward.gated_norm(ELEM), (), 2, 1),
    "gated norm, gate per column": (forward.gated_norm(COL), (), 2, 1),
    "residual norm": (residual_norm(), ("h", "rstd"), 1, 1),
    "silu of layernorm": (silu_layernorm(), ("mean", "rstd"), 2, 1),
    "gelu of layernorm": (gelu_layernorm(), ("mean", "rstd"), 2, 1),
    "relu of layernorm": (relu_layernorm(), ("mean", "rstd"), 2, 1),
    "layernorm, then softmax": (layernorm_then_softmax(), ("mean", "rstd", "y"), 3, 2),
    "two outputs": (two_outputs(), ("mean", "rstd"), 2, 1),
    "tanh, then l2norm": (tanh_then_l2norm(), (), 2, 1),
    "skewed": (skewed(), ("mean", "rstd"), 4, 1),
    "variance times x": (variance_times_x(), (), 4, 2),
    "squared deviation": (variance_as_output(), ("mean",), 1, 1),
    "weighted variance": (weighted_variance(), (), 5, 2),
    "l1norm with a row input": (l1norm_of_row_scaled(), (), 2, 1),
    "scaled by its mean": (scaled_by_its_mean(), ("mean",), 1, 1),
}


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
def test_row_reductions_stages_and_looks_are_the_textbooks(case: str) -> None:
    p, saved, row_reductions, stages = CASES[case]
    backward = differentiate(p, saved=saved)
    assert len(backward.row_reduces) == row_reductions
    stage = stage_of(backward)
    assert max(stage[n] for r in backward.row_reduces for n in r.names) == stages
    assert looks(backward) == stages + 1


def test_layernorm_reads_like_the_textbook() -> None:
    assert str(differentiate(forward.layernorm(), saved=("mean", "rstd"))) == (
        "program layernorm_backward(eps)\n"
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


# -- specs ---------------------------------------------------------------------------------------------------------

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
    shipped = {name: load(name) for name in list_specs()}
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
    dys = {"y": np.random.default_rng(8).normal(size=(3, 5))}
    got = run_backward(p, inputs, dys, saved=() if recompute else spec.saved)
    for tensor in inputs:
        want = finite_differences(p, inputs, dys, tensor)
        np.testing.assert_allclose(got[f"d{tensor}"], want, rtol=1e-7, atol=1e-7, err_msg=tensor)


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


# -- choices ---------------------------------------------------------------------------------------------------


def test_frozen_weights_leave_no_column_reduction() -> None:
    backward = differentiate(forward.layernorm(), wrt=("x",), saved=("mean", "rstd"))
    assert not backward.col_reduces
    assert [s.tensor for s in backward.stores] == ["dx"]


def test_dbias_alone_reads_dy_alone() -> None:
    backward = differentiate(forward.layernorm(), wrt=("bias",), saved=("mean", "rstd"))
    assert [s.name for s in backward.loads] == ["dy"]
    assert not backward.row_reduces


def test_dweight_alone_needs_no_row_reduction() -> None:
    backward = differentiate(forward.layernorm(), wrt=("weight",), saved=("mean", "rstd"))
    assert {s.name for s in backward.loads} == {"dy", "x", "mean", "rstd"}
    assert not backward.row_reduces


def test_residual_inputs_share_one_value() -> None:
    backward = differentiate(residual_norm(), saved=("h", "rstd"))
    assert {s.tensor: s.value for s in backward.stores} == {"dx": "dx", "dresidual": "dx", "dw": "dw"}
    assert {s.name for s in backward.loads} == {"dh", "dy", "h", "w", "rstd"}


def test_chosen_outputs_alone_carry_gradient() -> None:
    backward = differentiate(residual_norm(), saved=("h", "rstd"), cotangents=("y",))
    assert "dh" not in {s.name for s in backward.loads}


def test_a_statistic_carries_gradient_when_asked() -> None:
    p = forward.layernorm(affine=False)
    inputs = data_for(p)
    drstd = np.array([1.0, -2.0, 3.0])
    steps = evaluate(p, inputs, SCALARS, keep_all=True)
    got = evaluate(differentiate(p, cotangents=("rstd",)), {**inputs, "drstd": drstd}, SCALARS)["dx"]
    centred = inputs["x"] - steps["mean"][:, None]
    np.testing.assert_allclose(got, -(drstd * steps["rstd"] ** 3)[:, None] * centred / 5, rtol=1e-12)


def test_an_input_without_influence_has_gradient_zero() -> None:
    p = program("unused", Load("x", ELEM), Load("w", COL), Map("y", ELEM, 2 * x), Store("y", "y", ELEM))
    got = evaluate(differentiate(p), {"dy": np.ones((2, 3))})
    assert got["dw"].tolist() == [0, 0, 0]
    assert (got["dx"] == 2).all()


@pytest.mark.parametrize(("accumulate", "added"), [(True, {"dx", "dweight", "dbias"}), (("dweight",), {"dweight"})])
def test_accumulate_marks_the_stores(accumulate: bool | tuple[str, ...], added: set[str]) -> None:
    backward = differentiate(forward.layernorm(), saved=("mean", "rstd"), accumulate=accumulate)
    assert {s.tensor for s in backward.stores if s.accumulate} == added


def test_backward_tensors_are_in_call_order() -> None:
    tensors = backward_tensors(forward.layernorm(), ("mean", "rstd"))
    listed = [(t.name, t.kind, t.of) for t in tensors]
    assert listed == [
        ("dx", ELEM, "x"),
        ("dweight", COL, "weight"),
        ("dbias", COL, "bias"),
        ("dy", ELEM, "y"),
        ("x", ELEM, "x"),
        ("weight", COL, "weight"),
        ("mean", ROW, "mean"),
        ("rstd", ROW, "rstd"),
    ]
    assert [t.is_written for t in tensors] == [True] * 3 + [False] * 5


def test_softmax_backward_needs_dy_and_y() -> None:
    assert [t.name for t in backward_tensors(forward.softmax(), ("y",))] == ["dx", "dy", "y"]


@pytest.mark.parametrize("case", ["layernorm", "softmax with temperature, nothing saved", "skewed", "two outputs"])
def test_the_text_is_the_same_in_every_process(case: str) -> None:
    code = (
        "from tests.program.test_differentiate import CASES, differentiate\n"
        f"p, saved, _, _ = CASES[{case!r}]\nprint(differentiate(p, saved=saved))"
    )
    p, saved, _, _ = CASES[case]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str(differentiate(p, saved=saved))


@pytest.mark.parametrize("case", [c for c in CASES if "layernorm" in c])
def test_a_centred_term_is_never_expanded(case: str) -> None:
    """x*rstd - mean*rstd cancels: outside its own definition, mean occurs only as mean - x."""
    p, saved, _, _ = CASES[case]
    for statement in differentiate(p, saved=saved).statements:
        for expr in used_exprs(statement):
            holders = [e for e in expr.atoms(sp.Add, sp.Mul) if {mean, -mean} & set(e.args)]
            assert all(e in (x - mean, -mean) for e in holders), f"{expr}"


# -- refusals --------------------------------------------------------------------------------------------------


def test_a_maximum_that_scales_is_refused() -> None:
    p = program("quantise", Load("x", ELEM), total("m", x, ABSMAX), Map("y", ELEM, x / m), Store("y", "y", ELEM))
    with pytest.raises(ProgramError, match="gradient of absmax is supported only where it cancels"):
        differentiate(p)


def test_a_maximum_that_does_not_lead_to_an_input_is_no_obstacle() -> None:
    p = program(
        "scaled",
        Load("x", ELEM),
        Load("w", COL),
        total("m", x, MAX),
        Map("y", ELEM, m * symbol("w")),
        Store("y", "y", ELEM),
    )
    assert [s.tensor for s in differentiate(p, wrt=("w",)).stores] == ["dw"]


def test_a_rewritten_program_is_refused() -> None:
    n, average, m2 = values("n average m2")
    p = program(
        "welford",
        Load("x", ELEM),
        Reduce(("n", "average", "m2"), ROW, WELFORD, (x,)),
        Map("y", ELEM, (x - average) * rsqrt(m2 / n)),
        Store("y", "y", ELEM),
    )
    with pytest.raises(ProgramError, match=r"only sum, max and absmax .*\n.*welford\n.*as written"):
        differentiate(p)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrt": ("wieght",)}, "did you mean 'weight'"),
        ({"saved": ("rsdt",)}, "did you mean 'rstd'"),
        ({"saved": ("weight",)}, "row or elem values that it computes"),
        ({"cotangents": ("z",)}, "cotangents belong to stored tensors"),
        ({"cotangents": ()}, "needs an elem output"),
        ({"accumulate": ("dy",)}, "only a gradient can be accumulated"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        differentiate(forward.layernorm(), **options)


def test_a_gradient_name_that_is_taken_is_refused() -> None:
    p = program(
        "taken", Load("x", ELEM), Map("dx", ELEM, 2 * x), Map("y", ELEM, symbol("dx") + x), Store("y", "y", ELEM)
    )
    with pytest.raises(ProgramError, match=r"must be free .*\n.*dx"):
        differentiate(p)


def test_a_function_without_a_rule_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"besselj has no derivative rule"):
        derivative(sp.besselj(0, x), x)


@pytest.mark.parametrize(
    "expr",
    [
        sp.exp(x * 2),
        sp.log(x),
        sp.tanh(x) ** 3,
        sp.erf(2 * x),
        sp.sqrt(1 + x * x),
        1 / (1 + sp.exp(-3 * x)),
        1 / (2 + sp.exp(x)),
        sp.Abs(x - 1),
        sp.Max(x, 0.25, x**2),
        sp.Min(x, 1 - x),
        sp.sign(x) * x,
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


def test_kinds_of_the_result_obey_the_checker() -> None:
    for p, saved, _, _ in CASES.values():
        backward = differentiate(p, saved=saved)
        assert {s.kind for s in backward.stores if s.tensor == "dx"} == {Kind.ELEM}
        assert all(r.kind is Kind.COL for r in backward.reduces if r.names[0] in {"dw", "dweight", "dbias", "dt"})

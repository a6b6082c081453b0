"""Programs to differentiate, what the textbooks need for them, and the two ways to run a backward in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from normgen.program.gradient.differentiate import differentiate
from normgen.program.ir import Load, Map, RowProgram, Store
from normgen.program.monoid import MAX, symbol
from normgen.spec.spec import Sizes
from tests.program import programs as forward
from tests.program.evaluate import evaluate
from tests.program.programs import COL, ELEM, ROW, bias, eps, mean, program, rsqrt, rstd, total, values, weight, x

Array = np.ndarray[Any, Any]
SCALARS = {"eps": 0.01, "p": 0.25}
LAYERNORM_STATISTICS = forward.layernorm().statements[3:8]


def data_for(p: RowProgram, rows: int = 3, cols: int = 5, seed: int = 0) -> dict[str, Array]:
    """Random inputs, and random numbers by the names of their values; tensors called w are positive."""
    rng = np.random.default_rng(seed)
    drawn = {load.name: np.asarray(rng.normal(size=load.kind.shape(Sizes(rows, cols)))) for load in p.loads}
    drawn |= {r.name: rng.random((rows, cols)) for r in p.randoms}
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

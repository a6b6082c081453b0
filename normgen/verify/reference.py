"""float64 references of the built-in operations, written by hand with numpy.

    reference("layernorm", "forward", {"x": x, "weight": w}, {"eps": 1e-5})  ->  {"y": ..., "mean": ..., "rstd": ...}

x, y, dy, dx, h, residual: [rows, cols]; weight, bias, dweight, dbias: [cols]; mean, rstd, row_max, row_sum, total of
row_sum: [rows]; alpha, dalpha, total of full_sum: []. `random 0`: [rows, cols], the numbers of a spec's first draw.
Non-finite values follow IEEE, as in torch: a NaN or a +inf makes a softmax row NaN, a -inf entry gives 0.

`BACKWARD_FORMULAS` states the same gradients as formula texts; the error model walks those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from normgen.errors import UsageError, did_you_mean
from normgen.spec.reader import is_built_in
from normgen.spec.spec import Spec
from normgen.verify.interpret import Array

Tensors = Mapping[str, Array]
Scalars = Mapping[str, float]
Reference = Callable[[Tensors, Scalars], dict[str, Array]]

REFERENCES: dict[tuple[str, str], Reference] = {}


def register(op: str, direction: str = "forward") -> Callable[[Reference], Reference]:
    """Decorator: the hand-written reference of an operation in one direction."""

    def add(function: Reference) -> Reference:
        REFERENCES[op, direction] = function
        return function

    return add


def reference(op: str, direction: str, inputs: Mapping[str, Any], scalars: Scalars | None = None) -> dict[str, Array]:
    """Every written tensor of `op` in float64; UsageError when there is no hand-written reference."""
    found = REFERENCES.get((op, str(direction)))
    if found is None:
        known = [f"{name} {way}" for name, way in REFERENCES]
        name = f"{op} {direction}"
        raise UsageError("no hand-written reference of that name", received=name, hint=did_you_mean(name, known))
    tensors = {name: np.asarray(value).astype(np.float64) for name, value in inputs.items() if value is not None}
    with np.errstate(all="ignore"):
        return found(tensors, scalars or {})


def has_reference(spec: Spec, direction: str) -> bool:
    """Whether a spec has a hand-written reference in that direction: a built-in one, not another of its name."""
    return (spec.name, str(direction)) in REFERENCES and is_built_in(spec)


def backward_formulas(spec: Spec) -> tuple[tuple[str, str], ...] | None:
    """The gradients of a built-in spec as formula texts; None where there are none, or it is another of its name."""
    return BACKWARD_FORMULAS[spec.name] if spec.name in BACKWARD_FORMULAS and is_built_in(spec) else None


def _scaled(value: Array, tensors: Tensors) -> Array:
    if "weight" in tensors:
        value *= tensors["weight"]
    if "bias" in tensors:
        value += tensors["bias"]
    return value


@register("layernorm")
def _layernorm(tensors: Tensors, scalars: Scalars) -> dict[str, Array]:
    """y = (x - mean) / sqrt(var + eps) * weight + bias; Ba, Kiros and Hinton 2016, eq. 4."""
    x = tensors["x"]
    mean = x.mean(axis=1, keepdims=True)
    centred = x - mean
    var = np.einsum("rc,rc->r", centred, centred)[:, None] / x.shape[1]
    rstd = 1 / np.sqrt(var + scalars.get("eps", 1e-5))
    centred *= rstd
    return {"y": _scaled(centred, tensors), "mean": mean[:, 0], "rstd": rstd[:, 0]}


@register("rmsnorm")
def _rmsnorm(tensors: Tensors, scalars: Scalars) -> dict[str, Array]:
    """y = x / sqrt(mean(x²) + eps) * weight; Zhang and Sennrich 2019, eq. 4."""
    x = tensors["x"]
    square = np.einsum("rc,rc->r", x, x)[:, None] / x.shape[1]
    rstd = 1 / np.sqrt(square + scalars.get("eps", 1e-5))
    return {"y": _scaled(x * rstd, tensors), "rstd": rstd[:, 0]}


@register("dropout_add_rmsnorm")
def _dropout_add_rmsnorm(tensors: Tensors, scalars: Scalars) -> dict[str, Array]:
    """h = x / (1 - p) where it is kept, else 0, + residual, y = h / sqrt(mean(h²) + eps) * weight."""
    p = scalars.get("p", 0.1)
    h = np.where(tensors["random 0"] >= p, tensors["x"] / (1 - p), 0.0) + tensors["residual"]
    return {"h": h, **_rmsnorm({**tensors, "x": h}, scalars)}


def _row_max(x: Array) -> Array:
    return np.asarray(x.max(axis=1, keepdims=True))


@register("softmax")
def _softmax(tensors: Tensors, _: Scalars) -> dict[str, Array]:
    """y = exp(x - max x) / Σ exp(x - max x)."""
    e = np.exp(tensors["x"] - _row_max(tensors["x"]))
    e /= e.sum(axis=1, keepdims=True)
    return {"y": e}


@register("log_softmax")
def _log_softmax(tensors: Tensors, _: Scalars) -> dict[str, Array]:
    """y = x - max x - log Σ exp(x - max x)."""
    shifted = tensors["x"] - _row_max(tensors["x"])
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return {"y": shifted}


@register("row_max_sum")
def _row_max_sum(tensors: Tensors, _: Scalars) -> dict[str, Array]:
    """row_max = max x, row_sum = Σ exp(x - row_max)."""
    top = _row_max(tensors["x"])
    return {"row_max": top[:, 0], "row_sum": np.exp(tensors["x"] - top).sum(axis=1)}


@register("row_sum")
def _row_sum(tensors: Tensors, _: Scalars) -> dict[str, Array]:
    """total = Σ x."""
    return {"total": tensors["x"].sum(axis=1)}


@register("full_sum")
def _full_sum(tensors: Tensors, _: Scalars) -> dict[str, Array]:
    """total = Σ Σ x."""
    return {"total": tensors["x"].sum()}


@register("dyt")
def _dyt(tensors: Tensors, _: Scalars) -> dict[str, Array]:
    """y = tanh(alpha x) weight + bias; Zhu et al. 2025, eq. 1."""
    return {"y": _scaled(np.tanh(tensors["alpha"] * tensors["x"]), tensors)}


def _saved(forward: Reference, name: str, tensors: Tensors, scalars: Scalars) -> Array:
    """A value of the forward: as it was saved, else computed again."""
    return tensors[name] if name in tensors else forward(tensors, scalars)[name]


@register("layernorm", "backward")
def _layernorm_backward(tensors: Tensors, scalars: Scalars) -> dict[str, Array]:
    """dx = rstd (wdy - mean(wdy) - xhat mean(wdy xhat)), wdy = dy weight, xhat = (x - mean) rstd."""
    dy = tensors["dy"]
    if "x" not in tensors:  # a kernel of dbias alone
        return {"dbias": dy.sum(axis=0)}
    rstd = _saved(_layernorm, "rstd", tensors, scalars).reshape(-1, 1)
    xhat = (tensors["x"] - _saved(_layernorm, "mean", tensors, scalars).reshape(-1, 1)) * rstd
    wdy = dy * tensors["weight"] if "weight" in tensors else dy
    along_mean = wdy.mean(axis=1, keepdims=True)
    along_xhat = np.einsum("rc,rc->r", wdy, xhat)[:, None] / dy.shape[1]
    dx = rstd * (wdy - along_mean - xhat * along_xhat)
    return {"dx": dx, "dweight": np.einsum("rc,rc->c", dy, xhat), "dbias": dy.sum(axis=0)}


@register("rmsnorm", "backward")
def _rmsnorm_backward(tensors: Tensors, scalars: Scalars) -> dict[str, Array]:
    """dx = rstd (wdy - xhat mean(wdy xhat)), wdy = dy weight, xhat = x rstd."""
    dy = tensors["dy"]
    if "x" not in tensors:  # a kernel of dbias alone
        return {"dbias": dy.sum(axis=0)}
    rstd = _saved(_rmsnorm, "rstd", tensors, scalars).reshape(-1, 1)
    xhat = tensors["x"] * rstd
    wdy = dy * tensors["weight"] if "weight" in tensors else dy
    along_xhat = np.einsum("rc,rc->r", wdy, xhat)[:, None] / dy.shape[1]
    dx = rstd * (wdy - xhat * along_xhat)
    return {"dx": dx, "dweight": np.einsum("rc,rc->c", dy, xhat), "dbias": dy.sum(axis=0)}


@register("dropout_add_rmsnorm", "backward")
def _dropout_add_rmsnorm_backward(tensors: Tensors, scalars: Scalars) -> dict[str, Array]:
    """dresidual = dh + the gradient of RMSNorm by h; dx = dresidual times 1 / (1 - p) where x was kept, or 0."""
    h = _saved(_dropout_add_rmsnorm, "h", tensors, scalars)
    found = _rmsnorm_backward({**tensors, "x": h}, scalars)
    found["dresidual"] = found["dx"] + tensors.get("dh", 0.0)
    if "random 0" in tensors:
        p = scalars.get("p", 0.1)
        found["dx"] = found["dresidual"] * np.where(tensors["random 0"] >= p, 1 / (1 - p), 0.0)
    return found


@register("softmax", "backward")
def _softmax_backward(tensors: Tensors, scalars: Scalars) -> dict[str, Array]:
    """dx = y (dy - Σ dy y)."""
    dy, y = tensors["dy"], _saved(_softmax, "y", tensors, scalars)
    return {"dx": y * (dy - (dy * y).sum(axis=1, keepdims=True))}


@register("log_softmax", "backward")
def _log_softmax_backward(tensors: Tensors, scalars: Scalars) -> dict[str, Array]:
    """dx = dy - exp(y) Σ dy."""
    dy, y = tensors["dy"], _saved(_log_softmax, "y", tensors, scalars)
    return {"dx": dy - np.exp(y) * dy.sum(axis=1, keepdims=True)}


@register("full_sum", "backward")
def _full_sum_backward(tensors: Tensors, _: Scalars) -> dict[str, Array]:
    """dx = dtotal."""
    return {"dx": np.broadcast_to(tensors["dtotal"], tensors["x"].shape)}


@register("dyt", "backward")
def _dyt_backward(tensors: Tensors, _: Scalars) -> dict[str, Array]:
    """dx = alpha wdy (1 - t²), dalpha = Σ Σ x wdy (1 - t²), dweight = Σ dy t; t = tanh(alpha x), wdy = dy weight."""
    dy = tensors["dy"]
    if "x" not in tensors:  # a kernel of dbias alone
        return {"dbias": dy.sum(axis=0)}
    x, alpha = tensors["x"], tensors["alpha"]
    t = np.tanh(alpha * x)
    along = (dy * tensors["weight"] if "weight" in tensors else dy) / np.cosh(alpha * x) ** 2
    found = {"dx": alpha * along, "dweight": (dy * t).sum(axis=0), "dbias": dy.sum(axis=0)}
    return {**found, "dalpha": (along * x).sum()}


BACKWARD_FORMULAS: dict[str, tuple[tuple[str, str], ...]] = {
    "layernorm": (
        ("xhat", "(x - mean) * rstd"),
        ("wdy", "dy * weight"),
        ("along_mean", "sum(wdy) / cols"),
        ("along_xhat", "sum(wdy * xhat) / cols"),
        ("dx", "rstd * (wdy - along_mean - xhat * along_xhat)"),
        ("dweight", "sum_rows(dy * xhat)"),
        ("dbias", "sum_rows(dy)"),
    ),
    "rmsnorm": (
        ("xhat", "x * rstd"),
        ("wdy", "dy * weight"),
        ("along_xhat", "sum(wdy * xhat) / cols"),
        ("dx", "rstd * (wdy - xhat * along_xhat)"),
        ("dweight", "sum_rows(dy * xhat)"),
        ("dbias", "sum_rows(dy)"),
    ),
    "softmax": (("dot", "sum(dy * y)"), ("dx", "y * (dy - dot)")),
    "log_softmax": (("total", "sum(dy)"), ("dx", "dy - exp(y) * total")),
}

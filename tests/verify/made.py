"""Specs and problems built by hand, as the reader would build them from TOML."""

from __future__ import annotations

from normgen.dtypes import F32, dtype
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse
from normgen.spec.reader import load
from normgen.spec.spec import Formula, Kind, Role, Spec, Tensor

# Of the built-in specs that are built again here: a hand-written reference is that of one of these.
_SHA256 = {n: load(n).sha256 for n in ("layernorm", "rmsnorm", "softmax", "log_softmax", "row_max_sum", "row_sum")}


def spec(
    name: str,
    formulas: dict[str, str],
    *,
    inputs: tuple[str, ...] = ("x",),
    parameters: dict[str, str | None] | None = None,
    statistics: tuple[str, ...] = (),
    outputs: tuple[str, ...] = ("y",),
    eps: float | None = 1e-5,
    accuracy_rows: tuple[str, ...] = (),
) -> Spec:
    tensors = [Tensor(name=n, role=Role.INPUT) for n in inputs]
    tensors += [
        Tensor(name=n, role=Role.PARAMETER, optional=absent is not None, absent=absent)
        for n, absent in (parameters or {}).items()
    ]
    tensors += [Tensor(name=n, role=Role.STATISTIC, optional=True) for n in statistics]
    tensors += [Tensor(name=n, role=Role.OUTPUT) for n in outputs]
    return Spec(
        name=name,
        summary=name,
        tensors=tuple(tensors),
        scalars=() if eps is None else (("eps", eps),),
        formulas=tuple(Formula(name=n, text=t, line=i) for i, (n, t) in enumerate(formulas.items(), 1)),
        accuracy_rows=accuracy_rows,
        saved=statistics,
        file=f"{name}.toml",
        sha256=_SHA256.get(name, ""),
    )


LAYERNORM = spec(
    "layernorm",
    {
        "mean": "sum(x) / cols",
        "var": "sum((x - mean)**2) / cols",
        "rstd": "rsqrt(var + eps)",
        "y": "(x - mean) * rstd * weight + bias",
    },
    parameters={"weight": "1", "bias": "0"},
    statistics=("mean", "rstd"),
)
RMSNORM = spec(
    "rmsnorm",
    {"rstd": "rsqrt(sum(x * x) / cols + eps)", "y": "x * rstd * weight"},
    parameters={"weight": "1"},
    statistics=("rstd",),
)
SOFTMAX = spec("softmax", {"top": "max(x)", "e": "exp(x - top)", "y": "e / sum(e)"}, eps=None)
LOG_SOFTMAX = spec(
    "log_softmax",
    {"top": "max(x)", "shifted": "x - top", "y": "shifted - log(sum(exp(shifted)))"},
    eps=None,
)
ROW_MAX_SUM = spec(
    "row_max_sum",
    {"row_max": "max(x)", "row_sum": "sum(exp(x - row_max))"},
    statistics=("row_max", "row_sum"),
    outputs=(),
    eps=None,
)
ROW_SUM = spec("row_sum", {"total": "sum(x)"}, statistics=("total",), outputs=(), eps=None)
BUILT_IN = (LAYERNORM, RMSNORM, SOFTMAX, LOG_SOFTMAX, ROW_MAX_SUM, ROW_SUM)


def forward(
    op: Spec,
    rows: int,
    cols: int,
    stored: str = "f32",
    *,
    pitch: int | None = None,
    align: int = 16,
    without: tuple[str, ...] = (),
) -> Problem:
    d = dtype(stored)
    uses = [
        TensorUse(name=t.name, kind=t.kind, dtype=F32 if t.role is Role.STATISTIC else d, is_written=t.role.is_written)
        for t in (*op.outputs, *op.statistics, *op.inputs, *op.parameters)
        if t.name not in without
    ]
    return Problem(spec=op, rows=rows, cols=cols, tensors=tuple(uses), pitch=pitch or cols, align=align)


BACKWARD_TENSORS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "layernorm": (("dx", "dweight", "dbias"), ("dy", "x", "weight", "mean", "rstd")),
    "rmsnorm": (("dx", "dweight"), ("dy", "x", "weight", "rstd")),
    "softmax": (("dx",), ("dy", "y")),
    "log_softmax": (("dx",), ("dy", "y")),
}


def backward(op: Spec, rows: int, cols: int, stored: str = "f32", *, accumulate: bool = False) -> Problem:
    written, read = BACKWARD_TENSORS[op.name]
    kinds = {"mean": Kind.ROW, "rstd": Kind.ROW, "weight": Kind.COL, "dweight": Kind.COL, "dbias": Kind.COL}
    uses = [
        TensorUse(
            name=n,
            kind=kinds.get(n, Kind.ELEM),
            dtype=F32 if kinds.get(n) is Kind.ROW else dtype(stored),
            is_written=n in written,
        )
        for n in (*written, *read)
    ]
    return Problem(
        spec=op,
        direction=Direction.BACKWARD,
        rows=rows,
        cols=cols,
        tensors=tuple(uses),
        pitch=cols,
        accumulate=accumulate,
    )


L2NORM = spec("l2norm", {"y": "x * rsqrt(sum(x*x) + eps) * gain"}, parameters={"gain": None}, eps=1e-6)
GATED = spec(
    "gated_norm",
    {"y": "x * rsqrt(mean(x*x) + eps) * w * sigmoid(g)"},
    inputs=("x", "g"),
    parameters={"w": None},
    eps=1e-6,
)
WARM_SOFTMAX = spec(
    "warm_softmax",
    {"z": "x * t", "e": "exp(z - max(z))", "y": "e / sum(e)"},
    parameters={"t": None},
    eps=None,
)
BENT = spec(
    "bent_norm",
    {"r": "rsqrt(mean(abs(x)) + eps)", "h": "maximum(x * r * w, b)", "y": "minimum(h, 1.5) + abs(x) * exp(b)"},
    parameters={"w": None, "b": "0"},
    statistics=("r",),
)
OWN = (L2NORM, GATED, WARM_SOFTMAX, BENT)  # no library's: nobody wrote their gradients down

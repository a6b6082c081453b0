"""Contractions that between them ask for all that a kernel of tiles does."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import ml_dtypes
import numpy as np
import sympy as sp

from normgen.program.functions import COL, ROW, Stored, cast
from normgen.program.ir import COLS, INNER, Map, Reduce, Store
from normgen.program.monoid import ABSMAX, MAX, MIN, SUM, symbol
from normgen.spec.spec import Kind
from tests.codegen.tiles.handmade import BEFORE, LINEAR, TENSORS, Case, dot

x, w, up, x2, gain, bias, scale, dy = map(symbol, ("x", "w", "up", "x2", "gain", "bias", "scale", "dy"))
h, g, u, squares, eps, factor, res = map(symbol, ("h", "g", "u", "squares", "eps", "factor", "res"))
low, high, top, y = map(symbol, ("low", "high", "top", "y"))
TURNED = {**TENSORS, "w": ("cols", "inner")}  # the order of torch's Linear
STORE = Store("y", "y", Kind.ELEM)
DX = {"dy": ("rows", "cols"), "w": ("inner", "cols"), "dx": ("rows", "inner")}
DW = {"x": ("rows", "inner"), "dy": ("rows", "cols"), "dw": ("inner", "cols"), "dbias": ("cols",)}
EVERY = {**TENSORS, "bias": ("cols",), "scale": ("rows",), "res": ("rows", "cols"), "factor": ()}
EPILOGUE = (dot("h", x, w), Map("y", Kind.ELEM, (h * factor + bias) * scale + res), STORE)


def product(left: Any, right: Any, axis: int = 1) -> Any:
    return (left * right).sum(axis, keepdims=True)


def silu(z: Any) -> Any:
    return z / (1 + np.exp(-z))


def normed(a: Any) -> dict[str, Any]:
    rstd = 1 / np.sqrt((a["x"] ** 2).mean(1, keepdims=True) + a["eps"])
    return {"y": product(a["x"] * a["gain"], a["w"]) * rstd, "rstd": rstd}


def extrema(a: Any) -> dict[str, Any]:
    """What is filled with 0 beyond an edge would be the largest, or the smallest, if it counted."""
    top = (-(a["x"] ** 2) - 1).max(1, keepdims=True)
    columns = (a["w"] ** 2 + 1).min(1, keepdims=True) - abs(a["w"]).max(1, keepdims=True)
    return {"top": top, "y": product(a["x"], a["w"]) + top * columns}


def gradients(a: Any) -> dict[str, Any]:
    return {"dw": product(a["x"], a["dy"], 0), "dbias": a["dy"].sum(0, keepdims=True)}


def epilogue(a: Any) -> dict[str, Any]:
    return {"y": (product(a["x"], a["w"]) * a["factor"] + a["bias"]) * a["scale"] + a["res"]}


def of_result(a: Any) -> dict[str, Any]:
    y = epilogue(a)["y"]
    rstd = a["scale"] / np.sqrt((y**2).mean(2, keepdims=True) + a["eps"]) + np.arange(len(y))[:, None, None]
    return {"y": y, "rstd": rstd, "top": (y - 30).max(2, keepdims=True), "low": np.exp(a["res"]).min(2, keepdims=True)}


def rides(name: str, monoid: Any, arg: Any, kind: Kind) -> Reduce:
    return Reduce((name,), kind, monoid, (arg,), over=Kind.INNER)


RSTD = Map("rstd", Kind.ROW, 1 / sp.sqrt(squares / INNER + eps))
COPIED = {  # all of their sides are f32 as they are stored
    "linear": LINEAR,
    "linear, w turned": Case(TURNED, (dot("y", x, w), STORE), LINEAR.truth),
    "linear, both turned": Case({**TURNED, "x": ("inner", "rows")}, (dot("y", x, w), STORE), LINEAR.truth),
    "two sums": Case(
        {**TENSORS, "up": ("inner", "cols")},
        (dot("g", x, w), dot("u", x, up), Map("y", Kind.ELEM, g / (1 + sp.exp(-g)) * u), STORE),
        lambda a: {"y": silu(product(a["x"], a["w"])) * product(a["x"], a["up"])},
    ),
    "two sums of four sides": Case(
        {**TENSORS, "up": ("inner", "cols"), "x2": ("rows", "inner")},
        (dot("g", x, w), dot("u", x2, up), Map("y", Kind.ELEM, g + 2 * u), STORE),
        lambda a: {"y": product(a["x"], a["w"]) + 2 * product(a["x2"], a["up"])},
    ),
    "squares beside the products": Case(
        {**TENSORS, "rstd": ("rows",), "gain": ()},
        (
            rides("squares", SUM, x**2, Kind.ROW),
            RSTD,
            dot("h", x, w),
            Map("y", Kind.ELEM, h * symbol("rstd") * gain),
            STORE,
            Store("rstd", "rstd", Kind.ROW),
        ),
        normed,
        scalars={"eps": 1e-3},
        nullable=("rstd",),
    ),
    "extrema beside the products": Case(
        {**TENSORS, "top": ("rows",)},
        (
            rides("top", MAX, -(x**2) - 1, Kind.ROW),
            rides("low", MIN, w**2 + 1, Kind.COL),
            rides("high", ABSMAX, w, Kind.COL),
            dot("h", x, w),
            Map("y", Kind.ELEM, h + top * (low - high)),
            STORE,
            Store("top", "top", Kind.ROW),
        ),
        extrema,
    ),
    "values of all kinds behind": Case(EVERY, EPILOGUE, epilogue),
    "added to y": Case(
        EVERY,
        (*EPILOGUE[:2], Store("y", "y", Kind.ELEM, accumulate=True)),
        lambda a: {"y": epilogue(a)["y"] + BEFORE},
    ),
    "numbers of rows and columns": Case(
        TENSORS,
        (dot("h", x, w), Map("y", Kind.ELEM, h + 2 * COL - ROW), STORE),
        lambda a: {
            "y": product(a["x"], a["w"]) + 2 * np.arange(a["w"].shape[2]) - np.arange(a["x"].shape[0])[:, None, None]
        },
    ),
    "dx": Case(
        DX, (dot("dx", dy, w, over="cols"), Store("dx", "dx", Kind.LEFT)), lambda a: {"dx": product(a["dy"], a["w"], 2)}
    ),
    "dx, w turned": Case(
        {**DX, "w": ("cols", "inner")},
        (dot("dx", dy, w, over="cols"), Store("dx", "dx", Kind.LEFT)),
        lambda a: {"dx": product(a["dy"], a["w"], 2)},
    ),
    "dw and dbias": Case(
        DW,
        (
            dot("dw", x, dy, over="rows"),
            Reduce(("dbias",), Kind.COL, SUM, (dy,)),
            Store("dw", "dw", Kind.MATRIX),
            Store("dbias", "dbias", Kind.COL),
        ),
        gradients,
    ),
    "dw and dbias added, w turned": Case(
        {**DW, "dw": ("cols", "inner")},
        (
            dot("dw", x, dy, over="rows"),
            Reduce(("dbias",), Kind.COL, SUM, (dy,)),
            Store("dw", "dw", Kind.MATRIX, accumulate=True),
            Store("dbias", "dbias", Kind.COL, accumulate=True),
        ),
        lambda a: {name: found + BEFORE for name, found in gradients(a).items()},
    ),
    "reductions of the result": Case(
        {**EVERY, "top": ("rows",), "rstd": ("rows",), "low": ("rows",)},
        (
            *EPILOGUE[:2],
            Reduce(("squares",), Kind.ROW, SUM, (y**2,)),
            Map("rstd", Kind.ROW, scale / sp.sqrt(squares / COLS + eps) + ROW),
            Reduce(("top",), Kind.ROW, MAX, (y - 30,)),
            Reduce(("low",), Kind.ROW, MIN, (sp.exp(res),)),
            *(Store(name, name, Kind.ROW) for name in ("rstd", "top", "low")),
            STORE,
        ),
        of_result,
        scalars={"eps": 1e-3},
        nullable=("rstd",),
        bound=1e-4,
    ),
}
COMPUTED = {
    "silu of x": Case(
        TENSORS,
        (Map("a", Kind.LEFT, x / (1 + sp.exp(-x))), dot("y", symbol("a"), w), STORE),
        lambda a: {"y": product(silu(a["x"]), a["w"])},
    ),
    "silu of w": Case(
        TENSORS,
        (dot("y", x, w / (1 + sp.exp(-w))), STORE),
        lambda a: {"y": product(a["x"], silu(a["w"]))},
    ),
    "exponentials of both sides": Case(
        TURNED,
        (dot("y", sp.exp(x), sp.exp(w)), STORE),
        lambda a: {"y": product(np.exp(a["x"]), np.exp(a["w"]))},
    ),
    "a gain along inner": Case(
        {**TENSORS, "gain": ("inner",), "rstd": ("rows",)},
        (
            rides("squares", SUM, x**2, Kind.ROW),
            RSTD,
            dot("h", x * gain, w),
            Map("y", Kind.ELEM, h * symbol("rstd")),
            STORE,
            Store("rstd", "rstd", Kind.ROW),
        ),
        normed,
        scalars={"eps": 1e-3},
        nullable=("rstd",),
        null_as={"gain": 1.0},
    ),
    "a gain along inner of both": Case(
        {**TENSORS, "gain": ("inner",), "bias": ("cols",)},
        (dot("h", x * gain, w * (gain + bias)), Map("y", Kind.ELEM, h * bias), STORE),
        lambda a: {"y": product(a["x"] * a["gain"], a["w"] * (a["gain"] + a["bias"])) * a["bias"]},
    ),
    "terms of rows and columns": Case(
        {**TENSORS, "scale": ("rows",), "bias": ("cols",)},
        (dot("y", x + scale, w - bias), STORE),
        lambda a: {"y": product(a["x"] + a["scale"], a["w"] - a["bias"])},
    ),
    "16-bit types": Case(
        {name: axes for name, axes in EVERY.items() if name != "factor"},
        (EPILOGUE[0], Map("y", Kind.ELEM, (h + bias) * scale + res), STORE),
        lambda a: epilogue({**a, "factor": 1}),
        dtypes={"x": "bf16", "w": "f16", "y": "bf16", "bias": "bf16", "scale": "f16", "res": "f16"},
        null_as={"bias": 0.0},
    ),
    "dbias of exponentials": Case(
        DW,
        (
            dot("dw", x, dy, over="rows"),
            Reduce(("dbias",), Kind.COL, SUM, (sp.exp(dy),)),
            Store("dw", "dw", Kind.MATRIX),
            Store("dbias", "dbias", Kind.COL),
        ),
        lambda a: {**gradients(a), "dbias": np.exp(a["dy"]).sum(0, keepdims=True)},
    ),
}
TWO_ORDERS = Case(  # of a side's tensors: one element at a time
    {**TENSORS, "up": ("cols", "inner"), "x2": ("inner", "rows")},
    (dot("y", x + x2, w * up), STORE),
    lambda a: {"y": product(a["x"] + a["x2"], a["w"] * a["up"])},
)
CASES = COPIED | COMPUTED
PARTLY_COPIED = ("silu of x", "silu of w", "a gain along inner")  # one side is as it is stored


def of_16_bits(case: Case, dtype: str) -> Case:
    """The same of factors that tensor cores multiply; all else stays f32, so that each error shows."""
    factors = {name for s in case.statements if isinstance(s, Reduce) and s.is_dot for arg in s.args
               for name in map(str, arg.free_symbols)}  # fmt: skip
    return replace(case, dtypes=dict.fromkeys(factors, dtype))


OF_TENSORS = {name: of_16_bits(case, dtype) for (name, case), dtype in zip(COPIED.items(), cycle(("bf16", "f16")))}
OF_TENSORS |= {
    "linear, f16": of_16_bits(LINEAR, "f16"),
    "linear, w turned, bf16": of_16_bits(COPIED["linear, w turned"], "bf16"),
    "two sums, f16": of_16_bits(COPIED["two sums"], "f16"),
    "a cast": Case(
        {**TURNED, "scale": ("rows",)},
        (
            Map("a", Kind.LEFT, cast(x * scale, Stored("bf16"))),
            dot("y", symbol("a"), w),
            STORE,
        ),
        lambda a: {"y": product((a["x"] * a["scale"]).astype(ml_dtypes.bfloat16).astype(np.float64), a["w"])},
        dtypes={"w": "bf16", "x": "bf16", "scale": "bf16"},
        bound=1e-3,
    ),
    "all of 16 bits": replace(
        COPIED["values of all kinds behind"],
        dtypes=dict.fromkeys(EVERY, "f16"),
    ),
}


def turned(case: Case) -> Case:
    """The same with every matrix in the order of torch's Linear."""
    order = {("inner", "cols"): ("cols", "inner")}
    return replace(case, tensors={name: order.get(axes, axes) for name, axes in case.tensors.items()})


STREAMED = {
    name: turned(OF_TENSORS[name])
    for name in (
        *("linear", "linear, f16", "two sums", "two sums of four sides", "squares beside the products", "added to y"),
        *("values of all kinds behind", "numbers of rows and columns", "reductions of the result", "all of 16 bits"),
    )
} | {"dx": OF_TENSORS["dx"]}  # whose sides lie along k
STREAMED["a maximum beside the products"] = of_16_bits(
    Case(  # what is filled with 0 beyond an edge would be the largest
        {**TURNED, "top": ("rows",)},
        (
            rides("top", MAX, -1000 * x**2, Kind.ROW),
            dot("h", x, w),
            Map("y", Kind.ELEM, h + top),
            STORE,
            Store("top", "top", Kind.ROW),
        ),
        lambda a: ({"top": (peak := (-1000 * a["x"] ** 2).max(1, keepdims=True)), "y": product(a["x"], a["w"]) + peak}),
    ),
    "bf16",
)
BF16 = Stored("bf16")


def rounded(a: Any) -> Any:
    return a.astype(ml_dtypes.bfloat16).astype(np.float64)


def normed_sums(a: Any) -> dict[str, Any]:
    rstd = 1 / np.sqrt((a["x"] ** 2).mean(1, keepdims=True) + a["eps"])
    left = rounded(a["x"] * a["gain"])
    return {"y": silu(product(left, a["w"]) * rstd) * product(left, a["up"]) * rstd, "rstd": rstd}


STREAMED |= {  # lanes make factors of what they read
    "a norm in front of two sums": Case(
        {**TURNED, "up": ("cols", "inner"), "gain": ("inner",), "rstd": ("rows",)},
        (
            rides("squares", SUM, x**2, Kind.ROW),
            RSTD,
            Map("a", Kind.LEFT, cast(x * gain, BF16)),
            dot("g", symbol("a"), w),
            dot("u", symbol("a"), up),
            Map("z", Kind.ELEM, g * symbol("rstd")),
            Map("y", Kind.ELEM, symbol("z") / (1 + sp.exp(-symbol("z"))) * u * symbol("rstd")),
            STORE,
            Store("rstd", "rstd", Kind.ROW),
        ),
        normed_sums,
        dtypes={"x": "bf16", "w": "bf16", "up": "bf16", "gain": "f32"},
        scalars={"eps": 1e-3},
        nullable=("rstd",),
        null_as={"gain": 1.0},
        bound=1e-3,
    ),
    "exponentials, of no 0 beyond an edge": Case(
        {**TURNED, "x2": ("rows", "inner"), "total": ("rows",)},
        (
            rides("total", SUM, sp.exp(x), Kind.ROW),
            dot("h", cast(sp.exp(x), BF16), w),
            dot("g", cast(x2 * ROW, BF16), w),
            Map("y", Kind.ELEM, h + g),
            STORE,
            Store("total", "total", Kind.ROW),
        ),
        lambda a: {
            "y": product(rounded(np.exp(a["x"])), a["w"])
            + product(rounded(a["x2"] * np.arange(a["x"].shape[0])[:, None, None]), a["w"]),
            "total": np.exp(a["x"]).sum(1, keepdims=True),
        },
        dtypes={"x": "bf16", "x2": "bf16", "w": "bf16"},
        bound=1e-3,
    ),
}

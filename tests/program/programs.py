"""Forward RowPrograms as a person writes them, built by hand for the tests of this folder."""

from __future__ import annotations

import sympy as sp

from normgen.program.ir import COLS, Load, Map, Reduce, RowProgram, Statement, Store, check
from normgen.program.monoid import MAX, SUM, Monoid, symbol
from normgen.spec.spec import Kind

ELEM, ROW, COL = Kind.ELEM, Kind.ROW, Kind.COL


def values(names: str) -> tuple[sp.Symbol, ...]:
    return tuple(symbol(n) for n in names.split())


def program(name: str, *statements: Statement, scalars: tuple[str, ...] = ()) -> RowProgram:
    return check(RowProgram(name, statements, scalars))


def total(name: str, arg: sp.Expr, monoid: Monoid = SUM) -> Reduce:
    return Reduce((name,), ROW, monoid, (arg,))


x, g, t, weight, bias, mean, var, rstd, eps, y = values("x g t weight bias mean var rstd eps y")


def rsqrt(e: sp.Expr) -> sp.Expr:
    return sp.Pow(e, sp.Rational(-1, 2))


def sigmoid(e: sp.Expr) -> sp.Expr:
    return 1 / (1 + sp.exp(-e))


def layernorm(*, affine: bool = True) -> RowProgram:
    parameters = (Load("weight", COL), Load("bias", COL)) if affine else ()
    xhat = (x - mean) * rstd
    return program(
        "layernorm",
        Load("x", ELEM),
        *parameters,
        total("x_sum", x),
        Map("mean", ROW, symbol("x_sum") / COLS),
        total("var_sum", (x - mean) ** 2),
        Map("var", ROW, symbol("var_sum") / COLS),
        Map("rstd", ROW, rsqrt(var + eps)),
        Map("y", ELEM, xhat * weight + bias if affine else xhat),
        Store("y", "y", ELEM),
        Store("mean", "mean", ROW),
        Store("rstd", "rstd", ROW),
        scalars=("eps",),
    )


def rmsnorm() -> RowProgram:
    return program(
        "rmsnorm",
        Load("x", ELEM),
        Load("weight", COL),
        total("square_sum", x**2),
        Map("rstd", ROW, rsqrt(symbol("square_sum") / COLS + eps)),
        Map("y", ELEM, x * rstd * weight),
        Store("y", "y", ELEM),
        Store("rstd", "rstd", ROW),
        scalars=("eps",),
    )


def softmax(argument: sp.Expr = x, *parameters: str) -> RowProgram:
    """softmax(argument); parameters are col tensors, as in softmax(x * t)."""
    top, s = values("top s")
    return program(
        "softmax",
        Load("x", ELEM),
        *(Load(p, COL) for p in parameters),
        total("top", argument, MAX),
        total("s", sp.exp(argument - top)),
        Map("y", ELEM, sp.exp(argument - top) / s),
        Store("y", "y", ELEM),
    )


def softmax_with_names() -> RowProgram:
    """The same with the author's names for the steps, and the statistics stored."""
    top, s, e, z = values("top s e z")
    return program(
        "softmax",
        Load("x", ELEM),
        Load("t", COL),
        Map("z", ELEM, x * t),
        total("top", z, MAX),
        Map("e", ELEM, sp.exp(z - top)),
        total("s", e),
        Map("y", ELEM, e / s),
        Store("y", "y", ELEM),
        Store("top", "top", ROW),
        Store("s", "s", ROW),
    )


def log_softmax() -> RowProgram:
    top, s = values("top s")
    return program(
        "log_softmax",
        Load("x", ELEM),
        total("top", x, MAX),
        total("s", sp.exp(x - top)),
        Map("y", ELEM, x - top - sp.log(s)),
        Store("y", "y", ELEM),
    )


def log_softmax_lse() -> RowProgram:
    top, s, lse = values("top s lse")
    return program(
        "log_softmax",
        Load("x", ELEM),
        total("top", x, MAX),
        total("s", sp.exp(x - top)),
        Map("lse", ROW, top + sp.log(s)),
        Map("y", ELEM, x - lse),
        Store("y", "y", ELEM),
        Store("lse", "lse", ROW),
    )


def l2norm() -> RowProgram:
    return program(
        "l2norm",
        Load("x", ELEM),
        total("x_x_sum", x * x),
        Map("y", ELEM, x * rsqrt(symbol("x_x_sum") + eps)),
        Store("y", "y", ELEM),
        scalars=("eps",),
    )


def l2norm_divided() -> RowProgram:
    norm, s = values("norm s")
    return program(
        "l2norm",
        Load("x", ELEM),
        total("s", x * x),
        Map("norm", ROW, sp.sqrt(s + eps)),
        Map("y", ELEM, x / norm),
        Store("y", "y", ELEM),
        scalars=("eps",),
    )


def gated_norm(gate: Kind) -> RowProgram:
    w, s = values("w s")
    return program(
        "gated_norm",
        Load("x", ELEM),
        Load("w", COL),
        Load("g", gate),
        total("s", x * x),
        Map("y", ELEM, x * rsqrt(s / COLS + eps) * w * sigmoid(g)),
        Store("y", "y", ELEM),
        scalars=("eps",),
    )

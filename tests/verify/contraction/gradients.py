"""Gradients of products as programs, written by hand."""

from __future__ import annotations

import sympy as sp

from normgen.program.ir import Load, Map, Reduce, RowProgram, Statement, Store
from normgen.program.monoid import DOT, SUM, symbol
from normgen.spec.spec import Kind

x, w, up, dy = (symbol(name) for name in ("x", "w", "up", "dy"))
KINDS = {"x": Kind.LEFT, "w": Kind.MATRIX, "up": Kind.MATRIX, "dy": Kind.ELEM, "weight": Kind.INNER}
STORED = {"dx": Kind.LEFT, "dw": Kind.MATRIX, "dup": Kind.MATRIX, "dbias": Kind.COL, "dresidual": Kind.ELEM}


def dot(name: str, left: sp.Expr, right: sp.Expr) -> Reduce:
    kind = STORED[name]
    over = {Kind.LEFT: Kind.COL, Kind.MATRIX: Kind.ROW}[kind]
    return Reduce((name,), kind, DOT, (left, right), over=over)


def program(*statements: Statement) -> RowProgram:
    """With the loads that it reads, and a store of each gradient."""
    read = {s.name for st in statements if isinstance(st, Reduce | Map) for e in _exprs(st) for s in e.free_symbols}
    loads = (Load(name, kind) for name, kind in KINDS.items() if name in read)
    names = [
        n
        for st in statements
        if isinstance(st, Reduce | Map)
        for n in (st.names if isinstance(st, Reduce) else (st.name,))
    ]
    stores = (Store(name, name, STORED[name]) for name in names if name in STORED)
    return RowProgram("gradient", (*loads, *statements, *stores))


def _exprs(statement: Reduce | Map) -> tuple[sp.Expr, ...]:
    return statement.args if isinstance(statement, Reduce) else (statement.expr,)


def of(gradient: str) -> RowProgram:
    """Of y = x @ w, x @ up + bias, or residual + x @ w."""
    match gradient:
        case "x":
            return program(dot("dx", dy, w))
        case "bias":
            return program(Reduce(("dbias",), Kind.COL, SUM, (dy,)))
    return program(dot(f"d{gradient}", x, dy))

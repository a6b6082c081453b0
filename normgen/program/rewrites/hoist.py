"""Divisions by values of rows and of groups, and by scalars, move out of element loops.

`exp(x - max) / total` multiplies by one reciprocal per row.

One rounding more (a reciprocal and a product instead of a quotient), cols - 1 divisions less: an IEEE
division is about ten instructions, a product one.
"""

from __future__ import annotations

from dataclasses import replace

import sympy as sp

from normgen.program.ir import COLS, Map, Reduce, RowProgram, Statement, check, kind_of, value_kinds
from normgen.program.monoid import symbol
from normgen.spec.spec import Kind


def hoist_row_divisions(program: RowProgram) -> RowProgram:
    """Every negative integer power of what is no elem, inside an elem expression, becomes a value of its own."""
    kinds = value_kinds(check(program))
    hoisted: dict[sp.Expr, sp.Symbol] = {}
    statements: list[Statement] = []
    for statement in program.statements:
        if isinstance(statement, Map) and statement.kind.is_elem:
            exprs = (statement.expr,)
        elif isinstance(statement, Reduce):
            exprs = statement.args
        else:
            statements.append(statement)
            continue
        for power in sorted({p for e in exprs for p in e.atoms(sp.Pow)} - hoisted.keys(), key=str):
            if not (power.exp.is_Integer and power.exp < 0):
                continue
            kind = kind_of(power, kinds)
            if kind.is_row or kind.is_groups or (kind is Kind.SCALAR and power.base.free_symbols - {COLS}):
                name = _fresh(f"{_label(power.base)}_inverse", kinds)
                kinds[name] = kind
                hoisted[power] = symbol(name)
                statements.append(Map(name, kind, power))
        new = tuple(e.xreplace(hoisted) for e in exprs)
        statements.append(
            replace(statement, expr=new[0]) if isinstance(statement, Map) else replace(statement, args=new)
        )
    return check(replace(program, statements=tuple(statements)))


def _label(expr: sp.Expr) -> str:
    return min((str(s.name) for s in expr.free_symbols if s != COLS), default="row")  # of its index alone


def _fresh(wish: str, taken: dict[str, Kind]) -> str:
    name, count = wish, 1
    while name in taken:
        count += 1
        name = f"{wish}{count}"
    return name

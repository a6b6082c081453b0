"""Divisions by values of rows and of groups, and by scalars, move out of element loops.

`exp(x - max) / total` multiplies by one reciprocal per row.

One rounding more (a reciprocal and a product instead of a quotient), cols - 1 divisions less: an IEEE
division is about ten instructions, a product one. The reciprocal's own error is that of all elements of a row: where
exponentials are exact, their quotients are corrected by what the product leaves of them.
"""

from __future__ import annotations

from dataclasses import replace

import sympy as sp

from normgen.program.functions import quotient_in
from normgen.program.ir import SIZES, Map, Reduce, RowProgram, Statement, check, free_name, kind_of, value_kinds
from normgen.program.monoid import symbol
from normgen.program.ordered import Ordered, is_product
from normgen.spec.spec import Kind


def hoist_row_divisions(program: RowProgram, *, corrected: bool = False) -> RowProgram:
    """Every negative integer power of what is no elem, inside an elem expression, becomes a value of its own.

    corrected  quotients of exponentials are divided by the remainder
    """
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
            if kind.is_row or kind.is_groups or (kind is Kind.SCALAR and power.base.free_symbols - {*SIZES}):
                name = free_name(f"{_label(power.base)}_inverse", kinds)
                kinds[name] = kind
                hoisted[power] = symbol(name)
                statements.append(Map(name, kind, power))
        if corrected:
            exprs = tuple(e.replace(is_product, lambda e: _divided(e, hoisted)) for e in exprs)
        new = tuple(e.xreplace(hoisted) for e in exprs)
        statements.append(
            replace(statement, expr=new[0]) if isinstance(statement, Map) else replace(statement, args=new)
        )
    return check(replace(program, statements=tuple(statements)))


def _divided(product: sp.Expr, hoisted: dict[sp.Expr, sp.Symbol]) -> sp.Expr:
    """The product with its exponential, and what else the first hoisted value divides, divided by the remainder.

    That value has a name: an expression would be computed again for each element.
    """
    factors = product.args
    at = next((i for i, f in enumerate(factors) if f in hoisted and f.exp == -1 and f.base.is_Symbol), None)
    if at is None:
        return product
    in_order = isinstance(product, Ordered)
    before, behind = (factors[:at], factors[at + 1 :]) if in_order else ((*factors[:at], *factors[at + 1 :]), ())
    if not any(f.has(sp.exp) for f in before):
        return product
    return quotient_in(type(product), before, (factors[at].base, hoisted[factors[at]]), behind)


def _label(expr: sp.Expr) -> str:
    return min((str(s.name) for s in expr.free_symbols if s not in SIZES), default="row")  # of its index alone

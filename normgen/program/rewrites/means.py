"""Means by a product and its remainder instead of a division.

An IEEE division is twelve instructions and a branch, across which a compiler moves nothing: that keeps loads behind it
where they are, and costs what waits for it. Which of the two is faster depends on the kernel (H200: 4 % of layernorm
8192x4097 and 3 % of rmsnorm 2048x5120 for the product, 8 % of layernorm_to_int8 4096x768 for the division).
"""

from __future__ import annotations

from dataclasses import replace

import sympy as sp

from normgen.program.functions import quotient_in
from normgen.program.ir import COLS, Map, Reduce, RowProgram, Statement, check, kind_of, value_kinds
from normgen.program.ordered import Ordered, is_product

ONE_OVER_COLS = 1 / COLS


def divide_means_by_remainder(program: RowProgram) -> RowProgram:
    """Every product of values of rows that cols divide is divided by the remainder."""
    kinds = value_kinds(check(program))

    def is_mean(expr: sp.Expr) -> bool:
        divides = is_product(expr) and ONE_OVER_COLS in expr.args[0 if expr.is_Mul else 1 :]
        return divides and kind_of(expr, kinds).is_row

    def rewritten(statement: Statement) -> Statement:
        if isinstance(statement, Map):
            return replace(statement, expr=statement.expr.replace(is_mean, _divided))
        if isinstance(statement, Reduce):
            return replace(statement, args=tuple(e.replace(is_mean, _divided) for e in statement.args))
        return statement

    return check(replace(program, statements=tuple(map(rewritten, program.statements))))


def _divided(product: sp.Expr) -> sp.Expr:
    """What stands before the division in an ordered product, or all other factors, divided; then what stands behind."""
    factors = product.args
    at = factors.index(ONE_OVER_COLS)
    if isinstance(product, Ordered):
        before, behind = factors[:at], factors[at + 1 :]
    else:
        others = [f for i, f in enumerate(factors) if i != at]
        below = [f for f in others if f.is_Pow and f.exp.is_negative]
        before, behind = tuple(f for f in others if f not in below), tuple(below)
    return quotient_in(type(product), before, (COLS, ONE_OVER_COLS), behind)

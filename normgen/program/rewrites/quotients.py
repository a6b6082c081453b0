"""Quotients by a product and its remainder instead of a division, but for those of elements.

An IEEE division is twelve instructions and a branch, across which a compiler moves nothing: that keeps loads behind it
where they are, and costs what waits for it. Which of the two is faster depends on the kernel (H200: 4 % of layernorm
8192x4097, 3 % of rmsnorm 2048x5120 and 10 % of silu_mul_to_fp8_group 1x12288 for the product, 8 % of
layernorm_to_int8 4096x768 for the division).
"""

from __future__ import annotations

from dataclasses import replace

import sympy as sp

from normgen.program.functions import cast, divide_by_remainder, quotient_in, reciprocal_approximate
from normgen.program.ir import COLS, Map, Reduce, RowProgram, Statement, check, kind_of, value_kinds
from normgen.program.ordered import Ordered, is_product

ONE_OVER_COLS = 1 / COLS


def divide_by_remainders(program: RowProgram, *, means: bool = True) -> RowProgram:
    """The program with its quotients of rows, groups and scalars by the remainder.

    Those are products that a number or cols divide (a scale by the largest code, a mean), and reciprocals with a name.

    What the largest code divides has the bits of the division (tests/codegen/test_library.py divides all floats).

    means  False: cols is a power of two, what it divides an exact product
    """
    kinds = value_kinds(check(program))
    scales = {one.name for one in program.statements if isinstance(one, Map) and _is_power_of_two(one.expr)}

    def is_quotient(expr: sp.Expr) -> bool:
        return is_product(expr) and _divisor(expr, means=means) is not None and not kind_of(expr, kinds).by_col

    def is_reciprocal(expr: sp.Expr) -> bool:
        return bool(expr.is_Pow and expr.exp == -1 and expr.base != COLS and str(expr.base) not in scales)

    def divided(expr: sp.Expr) -> sp.Expr:
        divisor = _divisor(expr, means=means)
        assert divisor is not None, "a quotient has what divides it"
        return _divided(expr, divisor)

    def rewritten(statement: Statement) -> Statement:
        if isinstance(statement, Map):
            if not statement.kind.by_col and is_reciprocal(statement.expr):
                return replace(statement, expr=_reciprocal(statement.expr.base))
            return replace(statement, expr=statement.expr.replace(is_quotient, divided))
        if isinstance(statement, Reduce):
            return replace(statement, args=tuple(e.replace(is_quotient, divided) for e in statement.args))
        return statement

    return check(replace(program, statements=tuple(map(rewritten, program.statements))))


def _is_power_of_two(expr: sp.Expr) -> bool:
    """Whether it is stored as one: of the least, 2^-127, which is subnormal, the hardware's reciprocal is infinite."""
    return isinstance(expr, cast) and expr.dtype.rounds_up


def _divisor(product: sp.Expr, *, means: bool) -> sp.Expr | None:
    """The reciprocal of cols, or of a number that is no power of two, that is a factor and divides what others are."""
    for factor in product.args[0 if product.is_Mul else 1 :]:
        if factor == ONE_OVER_COLS and means:
            return factor
        if isinstance(factor, sp.Rational) and factor.p == 1 and factor.q & (factor.q - 1):
            return factor
    return None


def _reciprocal(divisor: sp.Expr) -> sp.Expr:
    """What the hardware's reciprocal is off by is what the remainder corrects: NVRTC divides 1 so too, and branches."""
    return divide_by_remainder(sp.Integer(1), divisor, reciprocal_approximate(divisor))


def _divided(product: sp.Expr, reciprocal: sp.Expr) -> sp.Expr:
    """What stands before the division in an ordered product, or all other factors, divided; then what stands behind."""
    factors = product.args
    at = factors.index(reciprocal)
    if isinstance(product, Ordered):
        before, behind = factors[:at], factors[at + 1 :]
    else:
        others = [f for i, f in enumerate(factors) if i != at]
        below = [f for f in others if f.is_Pow and f.exp.is_negative]
        before, behind = tuple(f for f in others if f not in below), tuple(below)
    return quotient_in(type(product), before, (1 / reciprocal, reciprocal), behind)

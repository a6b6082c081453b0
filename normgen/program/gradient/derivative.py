"""The derivative of one expression by one of its values, as a sum of power products.

The forms are chosen for float32: sigmoid gives s * (1 - s), never exp(-x) / (1 + exp(-x))**2, which is
inf / inf for x < -88; sums stay whole. |x| and the elementwise maximum take the middle of their subgradient
at a tie (0 and one half each), which is also what central differences see. Comparisons and roundings to whole
numbers have the derivative 0, a rounding to a dtype has 1 (straight-through).
"""

from __future__ import annotations

import sympy as sp

from normgen.errors import ProgramError
from normgen.program.functions import (
    INFINITY,
    MEANINGS,
    both,
    cast,
    clamp,
    divide,
    either,
    greater,
    less,
    less_equal,
    name_of,
    sign,
    where,
)
from normgen.program.gradient.monomials import UNIT, Poly, add_into, expression, factors, monomial, multiplied
from normgen.program.ordered import opened


def derivative(expr: sp.Expr, of: sp.Symbol) -> Poly:
    """d expr / d of. ProgramError for a function without a rule."""
    if expr == of:
        return {UNIT: sp.Integer(1)}
    if of not in expr.free_symbols:
        return {}
    if expr.is_Add:
        total: Poly = {}
        for term in expr.args:
            add_into(total, derivative(term, of))
        return total
    if expr.is_Mul:
        if INFINITY in expr.args:
            hint = "write -inf as a branch of where(...), on its own"
            raise ProgramError("a gradient has the factor inf", received=str(expr), hint=hint)
        return _of_product(expr, of)
    if expr.is_Pow:
        return _of_power(expr, of)
    return _of_function(expr, of)


def _scaled(inner: Poly, outer: sp.Expr | tuple[sp.Expr, ...]) -> Poly:
    """inner * outer; a tuple's members are factors, each kept whole."""
    number: sp.Expr = sp.Integer(1)
    powers: dict[sp.Expr, sp.Rational] = {}
    for factor in outer if isinstance(outer, tuple) else (outer,):
        n, p = factors(factor)
        number, powers = number * n, multiplied(powers, p)
    result: Poly = {}
    for term, coefficient in inner.items():
        add_into(result, {monomial(multiplied(term, powers)): coefficient * number})
    return result


def _of_product(expr: sp.Expr, of: sp.Symbol) -> Poly:
    total: Poly = {}
    for i, factor in enumerate(expr.args):
        others = (*expr.args[:i], *expr.args[i + 1 :])
        add_into(total, _scaled(derivative(factor, of), others))
    return total


def _of_power(expr: sp.Expr, of: sp.Symbol) -> Poly:
    base, exponent = expr.args
    if of in exponent.free_symbols:
        outer = (expr, sp.log(base))
        total = _scaled(derivative(exponent, of), outer)
        add_into(total, _scaled(derivative(base, of), (exponent, sp.Pow(base, exponent - 1))))
        return total
    if _is_sigmoid(expr):
        (argument,) = (term.args[0] for term in base.args if isinstance(term, sp.exp))
        return _scaled(derivative(argument, of), (sp.Integer(-1), expr, 1 - expr))
    return _scaled(derivative(base, of), (exponent, sp.Pow(base, exponent - 1)))


def _is_sigmoid(expr: sp.Expr) -> bool:
    """1 / (1 + exp(u))"""
    base, exponent = expr.args
    return bool(
        exponent == -1
        and base.is_Add
        and len(base.args) == 2
        and sp.Integer(1) in base.args
        and any(isinstance(term, sp.exp) for term in base.args)
    )


def _of_function(expr: sp.Expr, of: sp.Symbol) -> Poly:
    if isinstance(expr, sp.Max | sp.Min):
        return _of_extremum(expr, of)
    if isinstance(expr, where):
        condition, chosen, other = expr.args
        total = _of_branch(condition, chosen, of)
        add_into(total, _of_branch(condition, other, of, otherwise=True))
        return total
    if isinstance(expr, cast):
        return derivative(opened(expr.args[0]), of)
    if isinstance(expr, divide):
        return derivative(expr.args[0] / expr.args[1], of)
    if isinstance(expr, clamp):
        x, low, high = expr.args
        total = _of_branch(both(less_equal(low, x), less_equal(x, high)), x, of)
        add_into(total, _of_branch(both(less(x, low), less_equal(low, high)), low, of))
        add_into(total, _of_branch(either(greater(x, high), greater(low, high)), high, of))
        return total
    name = name_of(expr)
    if name is None:
        raise ProgramError(f"the function {type(expr).__name__} has no derivative rule", received=str(expr))
    slope = MEANINGS[name].slope
    return {} if slope is None else _scaled(derivative(opened(expr.args[0]), of), slope(expr))


def _of_branch(condition: sp.Expr, branch: sp.Expr, of: sp.Symbol, *, otherwise: bool = False) -> Poly:
    """The derivative of a branch where it is taken, else 0: what is not taken may be NaN."""
    terms = {expression(term): number for term, number in derivative(branch, of).items()}
    taken = (where(condition, 0, term) if otherwise else where(condition, term, 0) for term in terms)
    return {((found, sp.Integer(1)),): number for found, number in zip(taken, terms.values(), strict=True)}


def _of_extremum(expr: sp.Expr, of: sp.Symbol) -> Poly:
    """d Max(a, b) = (1 + sign(a - b))/2 da + (1 + sign(b - a))/2 db; more than two arguments nest."""
    first, *rest = expr.args
    other = expr.func(*rest)
    low, high = (other, first) if isinstance(expr, sp.Max) else (first, other)
    is_plain = not (first.is_Add or other.is_Add)  # else sympy writes one sum: (b - b) + x is not b + (x - b)
    ahead = sign(high - low) if is_plain else greater(high, low) - less(high, low)
    total = _scaled(derivative(first, of), (sp.Rational(1, 2), 1 + ahead))
    add_into(total, _scaled(derivative(other, of), (sp.Rational(1, 2), 1 - ahead)))
    return {term: number for term, number in total.items() if number != 0}

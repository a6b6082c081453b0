"""Products in the order in which their author wrote them.

sympy's own product is a set of powers: it sorts its factors, multiplies brackets out into one product and forgets
which factor divided first. In float32 that decides what overflows: with x = 1e18, s = 1e18 and b = 1e21,
`x / s * b` is 1e21 and `x * b / s` is infinite. An `Ordered` product is opaque to sympy, so that substitutions go
through it and leave its order alone; where algebra is wanted (derivatives), `opened` gives the sympy product back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy as sp
from sympy.printing.precedence import PRECEDENCE

from normgen.program.functions import STEPS, where

_TRIVIAL = (0, 1, -1)


class Ordered(sp.Expr):  # type: ignore[misc]  # sympy has no types
    """((f1 * f2) * f3) * ...; a factor 1/f divides. A bracket of the author is an `Ordered` factor.

    A product of numbers is their number.
    """

    is_commutative = True
    precedence = PRECEDENCE["Mul"]

    def __new__(cls, *factors: sp.Expr) -> sp.Expr:
        return sp.Mul(*factors) if all(f.is_number for f in factors) else super().__new__(cls, *factors)

    is_extended_real = True  # else sympy writes |exp(x/x)| with the real part of x/x

    def could_extract_minus_sign(self) -> bool:
        return False


def is_product(expr: sp.Expr) -> bool:
    return bool(expr.is_Mul) or isinstance(expr, Ordered)


def product(left: sp.Expr, right: sp.Expr) -> sp.Expr:
    """left * right, where more factors may follow: `settled` ends it. Signs move to the front, which is exact."""
    if left in _TRIVIAL or right in _TRIVIAL or (left.is_number and right.is_number):
        return left * right
    if any(e.is_Mul and e.as_coeff_Mul()[0] == -1 for e in (left, right)):
        (sign, a), (other, b) = (e.as_coeff_Mul() if e.as_coeff_Mul()[0] == -1 else (1, e) for e in (left, right))
        return sign * other * product(a, b)
    if _is_power(left, right) or _is_power(right, left):
        return left * right
    factors = left.args if isinstance(left, Ordered) else (left,)
    return Ordered(*factors, right)


def _is_power(power: sp.Expr, base: sp.Expr) -> bool:
    """Whether `power * base` is x * x or x*x * x, which kernels compute in this order for a power too."""
    found, exponent = power.as_base_exp()
    return bool(found == base and exponent.is_Integer and exponent > 0)


def quotient(left: sp.Expr, right: sp.Expr) -> sp.Expr:
    return product(left, 1 / right)


def square(expr: sp.Expr) -> sp.Expr:
    """(a * b)**2 as the square of the product: sympy's a**2 * b**2 overflows where a * b does not."""
    return (Ordered(*expr.args) if expr.is_Mul else expr) ** 2


def settled(expr: sp.Expr) -> sp.Expr:
    """`expr` with sympy's product wherever two single factors stand alone: their order changes nothing."""
    return _settled(expr, is_bracket=False)


def _settled(expr: sp.Expr, *, is_bracket: bool) -> sp.Expr:
    if not expr.has(Ordered):
        return expr
    args = [_settled(arg, is_bracket=isinstance(expr, Ordered | sp.Pow)) for arg in expr.args]
    if not isinstance(expr, Ordered):
        found = expr.func(*args)
        # x*y - y*x stays: it is not 0 where x*y is infinite.
        return found if expr.is_Mul or is_kept(expr, tuple(args), found) else expr
    if len(args) == 1:
        return args[0]
    is_pair = len(args) == 2 and all(map(_is_single, args)) and not all(map(_divides, args))
    can_merge = len({arg.as_base_exp()[0] for arg in args}) < len(args)
    return args[0] * args[1] if is_pair and not can_merge and not is_bracket else Ordered(*args)


def _is_single(factor: sp.Expr) -> bool:
    """Whether the factor is one operand, or one divisor, of the printed product."""
    return not is_product(factor) and (not factor.is_Pow or abs(factor.exp) in (1, sp.Rational(1, 2)))


def _divides(factor: sp.Expr) -> bool:
    return bool(factor.is_Pow and factor.exp.is_Integer and factor.exp < 0)


def steps(expr: sp.Expr) -> Iterator[tuple[str, sp.Expr]]:
    """The operations of an ordered product, left to right: ("*", factor) or ("/", divisor); the first is a factor."""
    for at, factor in enumerate(expr.args):
        is_part = isinstance(factor, sp.Rational) and factor.p == 1 and factor.q != 1
        if at and (_divides(factor) or is_part):
            yield "/", 1 / factor
        else:
            yield "*", factor


def is_kept(expr: sp.Expr, args: tuple[sp.Expr, ...], found: sp.Expr) -> bool:
    """Whether `found`, which sympy made of the function of `expr` and `args`, has them all: a sum of sums is one sum.

    Else it folded something: part - z/z is 0 to sympy where `part` is a name of z/z, but NaN where z is 0.
    """
    if expr.is_Mul and found.is_Add:  # -(a + b) is -a - b
        return len(found.args) == max(len(sp.Add.make_args(arg)) for arg in args)
    if found.func is not expr.func:
        return False
    if expr.is_Add or expr.is_Mul:
        return len(found.args) == sum(len(expr.func.make_args(arg)) for arg in args)
    return set(found.args) == set(args)


def opened(expr: sp.Expr) -> sp.Expr:
    """`expr` as sympy writes it: the same number, its products in sympy's own order.

    But not within what may be a number where its argument is NaN: `x/x < 1` is false at 0, and sympy's `1 < 1` is not
    what the forward pass found there.
    """
    if not expr.has(Ordered) or isinstance(expr, STEPS):
        return expr
    if isinstance(expr, where):
        condition, *branches = expr.args
        return where(condition, *map(opened, branches))
    args: list[Any] = [opened(arg) for arg in expr.args]
    if isinstance(expr, Ordered):
        return sp.Mul(*args)
    found = expr.func(*args)
    # |x**-0.5| has an angle to sympy where x is negative, where a kernel has NaN.
    return expr if isinstance(expr, sp.Abs) and not is_kept(expr, tuple(args), found) else found

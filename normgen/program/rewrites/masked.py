"""A row of nothing but -inf, as a mask leaves it, by the state of an online softmax: its maximum is LOWEST, its sum 0.

As written, exp(e - max e) is NaN there, and so is all that is made of it. By that state it is 0, and what has it times
an infinite factor is NaN all the same: a quotient by the sum, or e - max e less the sum's logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import sympy as sp

from normgen.program.functions import Condition, where
from normgen.program.ordered import Ordered

_Number = float | str | None
_ENDLESS, _LOWEST = "endless", -float(np.finfo(np.float32).max)


class MaskedRow:
    """What expressions are of such a row.

    known  expressions -> their numbers
    moved  the values that another row would have otherwise: all that is made of them is NaN, if it is right
    """

    def __init__(self, e: sp.Expr, largest: sp.Symbol, total: sp.Symbol) -> None:
        """Of the softmax of the elements `e`."""
        self.known: dict[sp.Expr, _Number] = {e: -math.inf, largest: _LOWEST, total: 0.0}
        self.moved = {largest, total}

    def made(self, names: set[sp.Symbol], args: Sequence[sp.Expr]) -> None:
        """Values are made of these: NaN where they are, else any number, and wrong."""
        if not all(map(self.is_free, args)):
            self.known |= dict.fromkeys(names, math.nan if all(map(self.is_right, args)) else None)
            self.moved |= names

    def is_free(self, expr: sp.Expr) -> bool:
        return bool(expr.free_symbols.isdisjoint(self.moved))

    def is_right(self, expr: sp.Expr) -> bool:
        if self.is_free(expr):
            return True
        if isinstance(expr, where) and self.is_free(expr.args[0]):
            return all(map(self.is_right, expr.args[1:]))
        return _is_nan(self.number(expr))

    def number(self, expr: sp.Expr) -> _Number:
        """The expression's; None: any; _ENDLESS: any infinite one, or NaN."""
        if expr in self.known:
            return self.known[expr]
        if expr.is_Number:
            return float(expr)
        if expr.is_Add:  # a known sum of several terms may be some of these
            for part, number in self.known.items():
                if part.is_Add and set(part.args) < set(expr.args):
                    rest = sp.Add(*(set(expr.args) - set(part.args)))
                    return _sum([number, self.number(rest)])
        if isinstance(expr, where):  # as the branch that is made of what moved, if one is
            branches = [branch for branch in expr.args[1:] if not self.is_free(branch)]
            return self.number(branches[0]) if self.is_free(expr.args[0]) and len(branches) == 1 else None
        numbers = [self.number(arg) for arg in expr.args]
        if any(map(_is_nan, numbers)):
            return None if isinstance(expr, Condition) else math.nan
        if expr.is_Add:
            return _sum(numbers)
        if expr.is_Mul or isinstance(expr, Ordered):
            return _product(numbers)
        match expr, numbers:
            case sp.Pow(), [0.0, float(power)] if power < 0:
                return math.inf
            case sp.exp(), [float(of)] if of == -math.inf:
                return 0.0
            case sp.log(), [0.0]:
                return -math.inf
        return None


def _is_nan(number: _Number) -> bool:
    return isinstance(number, float) and math.isnan(number)


def _is_infinite(number: _Number) -> bool:
    return number == _ENDLESS or (isinstance(number, float) and math.isinf(number))


def _sum(terms: Sequence[_Number]) -> _Number:
    known = [term for term in terms if isinstance(term, float)]
    if len(known) == len(terms) or any(map(_is_nan, known)) or {math.inf, -math.inf} <= {*known}:
        return sum(known)
    return _ENDLESS if any(map(_is_infinite, terms)) else None


def _product(factors: Sequence[_Number]) -> _Number:
    known = [factor for factor in factors if isinstance(factor, float)]
    if any(map(_is_infinite, factors)):
        return math.nan if 0.0 in known else math.prod(known) if len(known) == len(factors) else _ENDLESS
    return math.prod(known) if len(known) == len(factors) else None

"""A RowProgram walked over any `Arithmetic`: float64 values, or values together with float32 error bounds.

The walk reads the program that `differentiate` wrote, before any schedule or rewrite: the emitter, its printer and
its passes have no part in it. What the program itself is worth, `derivative_proof` says.

Shapes: elem [rows, cols], row [rows, 1], col [1, cols], scalar []; along inner see `contraction.product`.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Generic, Protocol, TypeVar

import sympy as sp

from normgen.errors import ProgramError, did_you_mean
from normgen.program.functions import INFINITY, Index, cast, name_of, roll
from normgen.program.ir import COLS, Map, Reduce, RowProgram
from normgen.program.monoid import DOT
from normgen.program.ordered import Ordered, steps
from normgen.verify.interpret import POSITIONS, REDUCTIONS, Arithmetic

V = TypeVar("V")
R = TypeVar("R", covariant=True)


class ValueWalk(Protocol[R]):
    """Values by name, each evaluated when it is first asked for."""

    def value(self, name: str) -> R: ...
    def column_term(self, name: str) -> R: ...
    def total_term(self, name: str) -> tuple[R, bool]: ...


class ProgramWalk(Generic[V]):
    """The values and stored tensors of a program over the `known` ones: its loads, its scalars and `cols`.

    Errors: ProgramError for an unknown name, and for what a program holds only after a rewrite (Welford, a pivot, a
    guard).
    """

    def __init__(self, arithmetic: Arithmetic[V], program: RowProgram, known: dict[str, V]) -> None:
        self.arithmetic = arithmetic
        self.known = known
        self._maps = {s.name: s for s in program.maps}
        known_to_all = (*REDUCTIONS, *POSITIONS, DOT.name)
        self._reduces = {s.names[0]: s for s in program.reduces if s.monoid.name in known_to_all and not s.guard}
        self._drawn = {s.name: f"random {s.draw}" for s in program.randoms}  # as `interpret.drawn` names them
        self._stored = {s.tensor: s.value for s in program.stores}

    def value(self, name: str) -> V:
        name = self._stored.get(name, name)
        name = self._drawn.get(name, name)
        if name not in self.known:
            self.known[name] = self.arithmetic.named(self._defined(name))
        return self.known[name]

    def column_term(self, name: str) -> V:
        """t of a tensor that stores `sum_rows(t)`: what a sum over rows that come in blocks adds up."""
        statement = self._statement(self._stored.get(name, name))
        if isinstance(statement, Reduce) and not statement.kind.by_row:
            return self._expr(statement.args[0])
        if isinstance(statement, Map) and statement.expr == 0:
            return self.arithmetic.reduce("sum", self.arithmetic.constant(0.0))  # [1, 1]: a gradient that is 0
        raise ProgramError("a column output is one sum over the rows", received=name)

    def total_term(self, name: str) -> tuple[V, bool]:
        """t of a tensor that stores `sum_rows(t)` or `sum_rows(sum(t))`; whether it is the latter, which adds elements.

        A kernel may add elements without the sums of rows.
        """
        statement = self._statement(self._stored.get(name, name))
        if isinstance(statement, Reduce) and statement.args[0].is_Symbol:
            inner = self._reduces.get(statement.args[0].name)
            if inner is not None and inner.kind.is_row and inner.monoid.name == "sum":
                return self._expr(inner.args[0]), True
        return self.column_term(name), False

    def _statement(self, name: str) -> Map | Reduce:
        found = self._maps.get(name) or self._reduces.get(name)
        if found is None:
            names = (*self.known, *self._maps, *self._reduces)
            raise ProgramError("a value of the program is needed", received=name, hint=did_you_mean(name, names))
        return found

    def _defined(self, name: str) -> V:
        statement = self._statement(name)
        if isinstance(statement, Map):
            return self._expr(statement.expr)
        if statement.is_dot:
            left, right = map(self._expr, statement.args)
            return self.arithmetic.dot(left, right, statement.over)
        term = self._expr(statement.args[0])
        if not (statement.kind.by_row or statement.is_of_side):
            return self.arithmetic.sum_rows(term, self.known.get("row"))
        return self.arithmetic.reduce(statement.monoid.name, term, statement.group)

    def _expr(self, expr: sp.Expr) -> V:
        if expr == INFINITY:
            return self.arithmetic.constant(math.inf)
        if expr.is_number:
            return self.arithmetic.constant(float(expr))
        if expr.is_Symbol or isinstance(expr, Index):
            return self.value(COLS.name if expr == COLS else expr.name)
        if expr.is_Add:
            return self._sum(expr)
        if isinstance(expr, Ordered):
            return self._ordered(expr)
        if expr.is_Mul or expr.is_Pow:
            return self._product(expr)
        if isinstance(expr, cast):
            return self.arithmetic.cast(self._expr(expr.args[0]), expr.dtype)
        if isinstance(expr, roll):
            value, by = expr.args
            share = by.coeff(COLS)
            return self.arithmetic.roll(self._expr(value), Fraction(share.p, share.q), int(by - share * COLS))
        name = name_of(expr)
        if name is None:
            raise ProgramError(f"the function {type(expr).__name__} cannot be evaluated", received=str(expr))
        args = [self._expr(arg) for arg in expr.args]
        if isinstance(expr, sp.Max | sp.Min):  # of any number of arguments
            return functools.reduce(lambda a, b: self.arithmetic.call(name, a, b), args)
        return self.arithmetic.call(name, *args)

    def _sum(self, expr: sp.Expr) -> V:
        """Terms in sympy's order, `x - mean` for `-mean + x`: the positive ones first, the others subtracted."""
        plus = [t for t in expr.args if not t.could_extract_minus_sign()]
        minus = [-t for t in expr.args if t.could_extract_minus_sign()]
        if not plus:
            return self.arithmetic.negate(self._sum(-expr))
        total = functools.reduce(self.arithmetic.add, map(self._expr, plus))
        return functools.reduce(self.arithmetic.subtract, map(self._expr, minus), total)

    def _ordered(self, expr: Ordered) -> V:
        (_, first), *others = steps(expr)
        total = self._expr(first)
        for sign, operand in others:
            do = self.arithmetic.multiply if sign == "*" else self.arithmetic.divide
            total = do(total, self._expr(operand))
        return total

    def _product(self, expr: sp.Expr) -> V:
        """Factors multiplied, then divided by those with a negative whole power; kernels order both as they like."""
        do = self.arithmetic
        above: list[V] = []
        below: list[V] = []
        for factor in sp.Mul.make_args(expr):
            base, exponent = factor.as_base_exp() if factor.is_Pow else (factor, sp.Integer(1))
            if not exponent.is_number:
                raise ProgramError("an exponent is a number", received=str(factor))
            if factor == -1:
                continue
            if isinstance(factor, sp.Rational) and factor.p == 1 and factor.q != 1:  # 1/448 x is x / 448 in a kernel
                below.append(do.constant(float(factor.q)))
            elif exponent < 0 and exponent.is_Integer:
                below.append(self._power(base, -exponent))
            else:
                above.append(self._power(base, exponent))
        total = functools.reduce(do.multiply, above) if above else do.constant(1.0)
        total = do.in_any_order(above, below, functools.reduce(do.divide, below, total))
        return do.negate(total) if -1 in sp.Mul.make_args(expr) else total

    def _power(self, base: sp.Expr, exponent: sp.Expr) -> V:
        value = self._expr(base)
        return value if exponent == 1 else self.arithmetic.power(value, float(exponent))

"""Where a value of the forward pass may be 0, and where an expression may be infinite or NaN.

What is said holds for finite inputs that overflow nothing, and for scalars as specs mean them: the eps of
`mean(x * x) + eps` is above 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import sympy as sp

from normgen.dtypes import F8E8M0
from normgen.program.functions import INFINITY, cast, function_of, needs_of, power_of
from normgen.program.ir import SIZES, Map, Reduce, Statement, defined_names
from normgen.program.monoid import symbol
from normgen.program.ordered import is_product
from normgen.spec.functions import Domain
from normgen.spec.spec import Kind


class Defined:
    """Questions about expressions over the values of one forward program."""

    def __init__(self, statements: Iterable[Statement], kinds: Mapping[str, Kind]) -> None:
        self._kinds = kinds
        self._maps = dict[sp.Symbol, sp.Expr]()
        self._reduces = dict[sp.Symbol, Reduce]()
        self._risky = dict[sp.Symbol, bool]()
        self._answers = dict[tuple[sp.Expr, Callable[[sp.Expr], bool]], bool]()
        for statement in statements:
            if isinstance(statement, Map):
                self._maps[symbol(statement.name)] = statement.expr
            elif isinstance(statement, Reduce):
                self._reduces |= dict.fromkeys(map(symbol, defined_names(statement)), statement)

    def is_never_negative(self, expr: sp.Expr) -> bool:
        return self._kept(expr, self._never_negative)

    def is_positive(self, expr: sp.Expr) -> bool:
        """Above 0: an exponential, a sum of those, what has no sign plus a scalar, what is at least a scalar."""
        return self._kept(expr, self._positive)

    def is_never_0(self, expr: sp.Expr) -> bool:
        """Also of either sign: 1 / x is not, where it is a number."""
        return self._kept(expr, self._never_0)

    def _kept(self, expr: sp.Expr, find: Callable[[sp.Expr], bool]) -> bool:
        """Found once: each question asks others of every part, and formulas share their parts."""
        key = (expr, find)
        if key not in self._answers:
            self._answers[key] = find(expr)
        return self._answers[key]

    def _never_negative(self, expr: sp.Expr) -> bool:
        if expr.is_number or expr in SIZES:
            return bool(expr.is_extended_nonnegative) or expr in SIZES
        if expr in self._maps:
            return self.is_never_negative(self._maps[expr])
        if (reduce := self._reduces.get(expr)) is not None:
            is_kept = reduce.monoid.name in ("sum", "max", "min")
            return reduce.monoid.name == "absmax" or (is_kept and self.is_never_negative(reduce.args[0]))
        if expr.is_Pow:  # a root of what is negative is no number
            return not expr.exp.is_Integer or expr.exp % 2 == 0 or self.is_never_negative(expr.base)
        if expr.is_Add or is_product(expr):
            return all(map(self.is_never_negative, expr.args)) or self.is_positive(expr)
        if isinstance(expr, sp.Max):
            return any(map(self.is_never_negative, expr.args)) or self.is_positive(expr)
        function = function_of(expr)
        if function and function.keeps_sign:
            return self.is_never_negative(expr.args[0])
        return bool(function and function.gives)

    def _positive(self, expr: sp.Expr) -> bool:
        if expr.is_number or expr in SIZES:
            return bool(expr.is_extended_positive) or expr in SIZES
        if expr in self._maps:
            return self.is_positive(self._maps[expr])
        if (reduce := self._reduces.get(expr)) is not None:
            return reduce.monoid.name in ("sum", "max", "min") and self.is_positive(reduce.args[0])
        if expr.is_Add:
            others = [e for e in expr.args if not self._is_scalar(e)]
            is_above = len(others) < len(expr.args) or any(map(self.is_positive, others))
            return is_above and all(map(self.is_never_negative, others))
        if is_product(expr):
            return all(map(self.is_positive, expr.args))
        if isinstance(expr, sp.Max):
            return any(self._is_scalar(e) or self.is_positive(e) for e in expr.args)
        function = function_of(expr)
        if isinstance(expr, power_of) or (function and function.keeps_sign):
            return self.is_positive(expr.args[0])
        return bool(function and function.gives is Domain.POSITIVE) or bool(expr.is_Pow and self.is_positive(expr.base))

    def _never_0(self, expr: sp.Expr) -> bool:
        if expr in self._maps:
            return self.is_never_0(self._maps[expr])
        if expr.is_number:
            return bool(expr != 0)
        if is_product(expr):
            return all(map(self.is_never_0, expr.args))
        return bool(expr.is_Pow and expr.exp < 0) or self.is_positive(expr)

    def may_be_no_number(self, expr: sp.Expr) -> bool:
        """Whether it, or a value that it is computed from, divides by what may be 0 or leaves a domain."""
        if expr in self._risky:
            return self._risky[expr]
        if expr.is_Symbol:
            self._risky[expr] = False
            reduce = self._reduces.get(expr)
            parts = reduce.args if reduce else (self._maps[expr],) if expr in self._maps else ()
            self._risky[expr] = any(map(self.may_be_no_number, parts))
            return self._risky[expr]
        return expr == INFINITY or self._leaves(expr) or any(map(self.may_be_no_number, expr.args))

    def _leaves(self, expr: sp.Expr) -> bool:
        if expr.is_Pow and not (expr.exp.is_Integer and expr.exp > 0):
            is_root = not expr.exp.is_Integer
            return not (self.is_positive(expr.base) if is_root else self.is_never_0(expr.base))
        if isinstance(expr, cast) and expr.args[1].name == F8E8M0.name:  # which has no sign, but NaN
            return not self.is_never_negative(expr.args[0])
        return not all(self._is_of(arg, domain) for arg, domain in needs_of(expr))

    def _is_of(self, expr: sp.Expr, domain: Domain) -> bool:
        match domain:
            case Domain.POSITIVE:
                return self.is_positive(expr)
            case Domain.NOT_NEGATIVE:
                return self.is_never_negative(expr)
            case Domain.NOT_ZERO:
                return self.is_never_0(expr)
            case Domain.ABOVE_MINUS_ONE:
                return self.is_positive(1 + expr)

    def _is_scalar(self, expr: sp.Expr) -> bool:
        return bool(expr.is_Symbol and expr not in SIZES and self._kinds.get(expr.name) is Kind.SCALAR)

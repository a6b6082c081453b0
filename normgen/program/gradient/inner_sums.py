"""Sums over inner of a left side's gradient, as the forward pass has them: the rows' values that stand inside a side.

    softmax @ v:    Σ_inner exp(z - max) Σ_cols dy v   ->   Σ_cols dy (exp(z - max) @ v)
                    Σ_inner exp(z - max)               ->   its sum, which the forward has

So the maximum that only shifts a softmax beside a product cancels. A sum of what the forward has rounded by a `cast` is
taken for the sum of the values themselves, as a cast's derivative is 1. What the forward has not is a reduction of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import sympy as sp

from normgen.program.functions import cast
from normgen.program.gradient.algebra import Algebra
from normgen.program.gradient.monomials import Monomial, Poly, add_into, expression, factors, monomial
from normgen.program.ir import Reduce, Statement
from normgen.program.monoid import SUM, symbol
from normgen.program.ordered import opened
from normgen.spec.spec import Kind

_ONE = sp.Integer(1)


@dataclass(frozen=True, kw_only=True)
class InnerSums:
    """dots, named  as in `GradientWriter`; `fresh`: a name that is free"""

    algebra: Algebra
    forward: Iterable[Statement]
    dots: dict[sp.Symbol, Reduce]
    named: Mapping[sp.Symbol, Poly]
    fresh: Callable[[str], str]

    def of(self, poly: Poly) -> Poly:
        """sum(poly) over inner: factors of the row outside."""
        total: Poly = {}
        for term, number in poly.items():
            rows, rest = self.algebra.split(term)
            found = self._known(dict(rest)) or self._own(rest)
            add_into(total, self.algebra.times({rows: number}, found))
        return total

    def _known(self, powers: dict[sp.Expr, sp.Rational]) -> Poly | None:
        dot = next((self.dots[a] for a, p in powers.items() if a in self.dots and p == 1), None)
        side = monomial({a: p for a, p in powers.items() if a not in self.dots})
        for statement in (s for s in self.forward if isinstance(s, Reduce) and s.over.by_inner):
            summed = opened(statement.args[0].replace(cast, lambda x, _: x))
            if self.algebra.poly({monomial(factors(summed)[1]): _ONE}) != {side: _ONE}:
                continue
            value: Poly = {((symbol(statement.names[0]), _ONE),): _ONE}
            if dot is None and statement.monoid is SUM:
                return self.algebra.poly(value)
            if dot is not None and statement.is_dot and statement.args[1] == dot.args[1]:
                given = self.named.get(dot.args[0], {((dot.args[0], _ONE),): _ONE})
                return self.algebra.row_sum(self.algebra.times(given, value))
        return None

    def _own(self, rest: Monomial) -> Poly:
        args = (expression(rest),)
        value = next((v for v, s in self.dots.items() if s.monoid is SUM and s.args == args), None)
        if value is None:
            value = symbol(self.fresh("inner_sum"))
            self.dots[value] = Reduce((value.name,), Kind.ROW, SUM, args, over=Kind.INNER)
            self.algebra.kinds[value.name] = Kind.ROW
        return {((value, _ONE),): _ONE}

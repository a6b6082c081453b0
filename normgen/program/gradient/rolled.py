"""Cotangents rolled back: a factor of columns under the name of its rolled value, a factor of the row as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import sympy as sp

from normgen.errors import ProgramError
from normgen.program.functions import COL, roll
from normgen.program.gradient.algebra import Algebra
from normgen.program.gradient.monomials import Monomial, Poly, add_into, monomial
from normgen.program.ir import SIZES, Map, Statement
from normgen.program.monoid import symbol
from normgen.program.rewrites.rolls import columns, rolled_columns


class Rolled:
    """The rolled values of a sweep: those of the forward pass, and `maps` of its own.

    A value that is rolled back as far as it was rolled is the value itself.
    """

    def __init__(self, forward: Iterable[Statement], algebra: Algebra, fresh: Callable[[str], str]) -> None:
        self.algebra, self.fresh = algebra, fresh
        self.maps: list[Map] = []
        self._origin: dict[sp.Symbol, tuple[sp.Symbol, sp.Expr]] = {}
        self._known: dict[tuple[sp.Symbol, sp.Expr], sp.Symbol] = {}
        for statement in forward:
            if isinstance(statement, Map) and isinstance(statement.expr, roll):
                value, by = statement.expr.args
                self._add(symbol(statement.name), value, columns(by))

    def poly(self, poly: Poly, by: sp.Expr) -> Poly:
        """A sum, rolled."""
        found: Poly = {}
        for term, number in poly.items():
            add_into(found, {self.term(term, by): number})
        return found

    def term(self, term: Monomial, by: sp.Expr) -> Monomial:
        return monomial({self.expr(atom, by): power for atom, power in term})

    def expr(self, expr: sp.Expr, by: sp.Expr) -> sp.Expr:
        free = sorted(expr.free_symbols, key=str)
        values = {v: self.value(v, by) for v in free if v not in SIZES and self._moves(v)}
        return expr.xreplace({**values, **(rolled_columns(expr, columns(by)) if expr.has(COL) else {})})

    def _moves(self, value: sp.Symbol) -> bool:
        kind = self.algebra.kinds[value.name]
        if kind.is_groups:
            rule = "the gradient of roll passes values of groups of columns, which no other group's threads have"
            hint = "store what is rolled; a spec of its own rolls it"
            raise ProgramError(rule, received=value.name, hint=hint)
        return kind.within_row

    def value(self, value: sp.Symbol, by: sp.Expr) -> sp.Symbol:
        """The value of columns, rolled."""
        origin, own = self._origin.get(value, (value, sp.Integer(0)))
        by = columns(own + by)
        if by == 0:
            return origin
        if (origin, by) not in self._known:
            name = self.fresh(f"{origin.name}_rolled")
            self.maps.append(Map(name, self.algebra.kinds[origin.name], roll(origin, by)))
            self.algebra.kinds[name] = self.algebra.kinds[origin.name]
            self._add(symbol(name), origin, by)
        return self._known[origin, by]

    def origin(self, value: sp.Symbol) -> sp.Symbol:
        """What a value is rolled from; of another one itself."""
        return self._origin.get(value, (value, None))[0]

    def _add(self, value: sp.Symbol, of: sp.Symbol, by: sp.Expr) -> None:
        origin, own = self._origin.get(of, (of, sp.Integer(0)))
        by = columns(own + by)
        self._origin[value] = (origin, by)
        self._known.setdefault((origin, by), value)

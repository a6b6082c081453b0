"""Gradients as power products -> the statements of a backward RowProgram, each value named and used by name.

Only what a gradient reads is written: a forward value that is not saved is recomputed by its own statement.
A term's row factors are gathered into one row map, so that they cost once per row, not once per element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import sympy as sp

from normgen.program.gradient.algebra import Algebra
from normgen.program.gradient.monomials import (
    UNIT,
    Monomial,
    Poly,
    add_into,
    common_factor,
    expression,
    monomial,
    multiplied,
    raised,
)
from normgen.program.gradient.normalised import fresh
from normgen.program.gradient.shared_terms import term_name
from normgen.program.ir import COLS, SIZES, Load, Map, Reduce, Statement, Store, defined_names, is_stage, used_exprs
from normgen.program.monoid import SUM, symbol
from normgen.program.ordered import opened
from normgen.spec.spec import Kind

_MINUS_ONE = sp.Integer(-1)


class GradientWriter:
    """Writes statements on demand.

    forward   the forward statements, by the names they define
    loaded    values that are loaded, and how: inputs, saved values, cotangents
    named     cotangents that got a name of their own
    dots      contractions, and sums over inner, that gradients are made of, by their names
    """

    def __init__(
        self,
        algebra: Algebra,
        forward: Iterable[Statement],
        loaded: Mapping[str, Load],
        named: Mapping[sp.Symbol, Poly],
        dots: Mapping[sp.Symbol, Reduce],
        taken: set[str],
    ) -> None:
        self.algebra = algebra
        self.forward = {name: s for s in forward for name in defined_names(s)}
        self.loaded = loaded
        self.named = named
        self.dots = dots
        self.taken = taken
        self.statements: list[Statement] = []
        self._written: dict[sp.Symbol, sp.Symbol] = {size: size for size in SIZES}
        self._stages: dict[sp.Symbol, int] = dict.fromkeys(SIZES, 0)
        self._open: list[str] = []
        self._by_expr: dict[tuple[sp.Expr, Kind], sp.Symbol] = {}

    # -- gradients -----------------------------------------------------------------------------------------

    def gradient(self, tensor: str, of: Load, poly: Poly, *, accumulate: bool) -> None:
        """The statements that compute and store the gradient by what is loaded; adding zeros to one is no statement."""
        kind = of.kind
        expr = self._assembled_open(poly, kind, tensor)
        if accumulate and expr == 0:
            return
        known = self._by_expr.get((expr, kind))
        value = symbol(tensor) if known is None else known
        if known is None:
            over_rows = not (kind.by_row or (kind.is_matrix and kind.by_inner)) and expr != 0
            statement = Reduce((tensor,), kind, SUM, (expr,)) if over_rows else Map(tensor, kind, expr)
            self._append(value, kind, expr, statement)
        self.statements.append(Store(tensor, value.name, kind, accumulate, of.group))

    def _assembled_open(self, poly: Poly, kind: Kind, name: str) -> sp.Expr:
        """As `assembled`; until it is, no named cotangent that it needs is said by this one."""
        self._open.append(name)
        expr = self.assembled(poly, kind, name)
        self._open.pop()
        return expr

    def assembled(self, poly: Poly, kind: Kind, purpose: str) -> sp.Expr:
        """The factored expression of a sum: common * (coefficient * term + ...)."""
        settled = self._settled(poly, purpose)
        if not settled:
            return sp.Integer(0)
        common = common_factor(settled)
        inverse = raised(common, _MINUS_ONE)
        inner: Poly = {}
        for term, number in settled.items():
            inner[monomial(multiplied(term, inverse))] = number
        number = self._common_number(inner)
        if not kind.within_row:
            total = sp.Add(*(n / number * self._product(t) for t, n in inner.items()))
            return sp.Mul(number, self._product(common), total)
        total = self._grouped(inner, number, purpose)
        rows, rest = self.algebra.split(common)
        return sp.Mul(number, self._row_factor(rows), self._product(rest), total)

    def _settled(self, poly: Poly, purpose: str) -> Poly:
        """The poly with the named cotangents it contains: dy*w*s*xhat is dxhat*xhat where dxhat = dy*w*s."""
        result: Poly = {}
        for term, number in self.algebra.settled(poly).items():
            powers = dict(term)
            for value, definition in self.named.items():
                if value.name not in (purpose, *self._open) and len(definition) == 1:
                    powers = self._with_name(powers, value, *definition.items())
            shown = number if number.is_Rational else number.evalf(17)  # 2/sqrt(pi) is one constant
            add_into(result, {monomial(powers): shown})
        return result

    def _with_name(
        self, powers: dict[sp.Expr, sp.Rational], value: sp.Symbol, definition: tuple[Monomial, sp.Expr]
    ) -> dict[sp.Expr, sp.Rational]:
        term, number = definition
        is_inside = all(p.is_Integer and p * powers.get(a, 0) > 0 and abs(powers[a]) >= abs(p) for a, p in term)
        if number != 1 or not is_inside:
            return powers
        return {a: p for a, p in multiplied(powers, raised(term, _MINUS_ONE), {value: sp.Integer(1)}).items() if p != 0}

    def _common_number(self, terms: Poly) -> sp.Expr:
        sizes = {abs(n) for n in terms.values()}
        return sizes.pop() if len(sizes) == 1 else sp.Integer(1)

    def _grouped(self, terms: Poly, number: sp.Expr, purpose: str) -> sp.Expr:
        """Σ coefficient * term, one row coefficient per distinct elem term."""
        groups: dict[Monomial, Poly] = {}
        for term, n in terms.items():
            rows, rest = self.algebra.split(term)
            add_into(groups.setdefault(rest, {}), {rows: n / number})
        parts = []
        for rest, coefficient in groups.items():
            elem = self._product(rest)
            parts.append(self._scaled(self._row_coefficient(coefficient, purpose), elem, is_alone=len(groups) == 1))
        return sp.Add(*parts)

    def _scaled(self, coefficient: sp.Expr, elem: sp.Expr, *, is_alone: bool) -> sp.Expr:
        """coefficient * elem, one term of a sum.

        A bare sum becomes a map: sympy would turn 3*(x - mean) into 3*x - 3*mean, and dy + (x - mean) into
        (dy + x) - mean, which cancel.
        """
        if elem.is_Add and coefficient.is_number and (abs(coefficient) != 1 or not is_alone):
            kind = self.algebra.kind(elem)
            kind = kind if kind.is_groups else Kind.ELEM
            value = symbol(fresh(self._atom_name(elem), self.taken))
            self._append(value, kind, elem, Map(value.name, kind, elem))
            elem = value
        return coefficient * elem

    def _row_coefficient(self, poly: Poly, purpose: str) -> sp.Expr:
        if len(poly) == 1:
            ((term, number),) = poly.items()
            return number * self._row_factor(term)
        return self._row_map(f"{purpose}_row", sp.Add(*(n * self._product(t) for t, n in poly.items())))

    def _row_factor(self, term: Monomial) -> sp.Expr:
        """A product of row values: itself if it is one value, else a row map."""
        if all(a in SIZES or self.algebra.kind(a) is Kind.SCALAR for a, _ in term) or [p for _, p in term] == [1]:
            return self._product(term)
        return self._row_map(self._row_name(term), self._product(term))

    def _row_name(self, term: Monomial) -> str:
        values = [(self._atom_name(a), p) for a, p in term if a not in SIZES]
        if len(values) == 1 and values[0][1] == 1 and dict(term).get(COLS) == -1 and values[0][0].endswith("_sum"):
            return values[0][0].removesuffix("_sum") + "_mean"
        return "_".join(name if p > 0 else f"inv_{name}" for name, p in values)

    def _row_map(self, name: str, expr: sp.Expr) -> sp.Symbol:
        known = self._by_expr.get((expr, Kind.ROW))
        if known is not None:
            return known
        value = symbol(fresh(name, self.taken))
        self._append(value, Kind.ROW, expr, Map(value.name, Kind.ROW, expr))
        return value

    def _append(self, value: sp.Symbol, kind: Kind, expr: sp.Expr, statement: Statement) -> None:
        self._by_expr[(expr, kind)] = value
        self._written[value] = value
        self.algebra.kinds[value.name] = kind
        self._stages[value] = self._stage_of(expr) + is_stage(statement)
        self.statements.append(statement)

    # -- values --------------------------------------------------------------------------------------------

    def _product(self, term: Monomial) -> sp.Expr:
        return expression(tuple((self._expr(atom), power) for atom, power in term))

    def _expr(self, expr: sp.Expr) -> sp.Expr:
        """`expr` with every value written before it is used."""
        values = sorted(expr.free_symbols, key=str)
        renamed = {v: self._value(v) for v in values}
        changed = {v: w for v, w in renamed.items() if v != w}
        return expr.xreplace(changed) if changed else expr

    def _value(self, value: sp.Symbol) -> sp.Symbol:
        if value not in self._written:
            self._written[value] = self._write(value)
        return self._written[value]

    def _write(self, value: sp.Symbol) -> sp.Symbol:
        if value in self.algebra.sums:
            return self._write_sum(value)
        if value in self.algebra.group_sums:
            return self._write_group_sum(self.algebra.group_sums[value])
        if value in self.named:
            kind = self.algebra.kinds[value.name]
            expr = self._assembled_open(self.named[value], kind, value.name)
            self._append(value, kind, expr, Map(value.name, kind, expr))
            return value
        if value in self.dots:
            statement = self.dots[value]
            args = tuple(map(self._expr, statement.args))
            self._append(
                value, statement.kind, sp.Function(statement.monoid.name)(*args), replace(statement, args=args)
            )
            return value
        if value.name in self.loaded:
            self.statements.append(self.loaded[value.name])
        elif value.name in self.forward:
            self._recompute(self.forward[value.name], value)
        return value

    def _recompute(self, statement: Statement, value: sp.Symbol) -> None:
        for expr in used_exprs(statement):
            self._expr(expr)
        for name in defined_names(statement):
            self._written[symbol(name)] = symbol(name)
        if isinstance(statement, Map) and not (known := opened(statement.expr)).is_number:
            self._by_expr.setdefault((known, statement.kind), value)  # log(w/w) is 0 to algebra, and no value has it
        self.statements.append(statement)

    def _write_sum(self, value: sp.Symbol) -> sp.Symbol:
        """A row reduction; a row factor that is known only later leaves it, so that it need not wait."""
        rest, rows = self._earliest(self.algebra.sums[value])
        arg = self._product(rest)
        total = symbol(fresh(self._sum_name(rest), self.taken))
        self._append(total, Kind.ROW, sp.Function("sum")(arg), Reduce((total.name,), Kind.ROW, SUM, (arg,)))
        if rows == UNIT:
            return total
        return self._row_map(self._sum_name(self.algebra.sums[value]), total * self._product(rows))

    def _write_group_sum(self, rest: Monomial) -> sp.Symbol:
        arg, total = self._product(rest), symbol(fresh(self._sum_name(rest), self.taken))
        statement = Reduce((total.name,), Kind.GROUPS, SUM, (arg,), group=self.algebra.group)
        self._append(total, Kind.GROUPS, sp.Function("group_sum")(arg), statement)
        return total

    def _earliest(self, rest: Monomial) -> tuple[Monomial, Monomial]:
        """The form of sum(rest) whose argument is ready first, and the row factors outside it."""
        best, best_rows = rest, UNIT
        for value, power in rest:
            if value.is_Symbol and self.algebra.opens(value, power):
                opened, rows = self.algebra.opened(best, value)
                if self._stage_of(expression(opened)) < self._stage_of(expression(best)):
                    best, best_rows = opened, monomial(multiplied(best_rows, rows))
        return best, best_rows

    # -- stages --------------------------------------------------------------------------------------------

    def _stage_of(self, expr: sp.Expr) -> int:
        return max((self._stage(v) for v in expr.free_symbols), default=0)

    def _stage(self, value: sp.Symbol) -> int:
        """How many dependent row reductions the value waits for in the program being written."""
        if value not in self._stages:
            self._stages[value] = self._find_stage(value)
        return self._stages[value]

    def _find_stage(self, value: sp.Symbol) -> int:
        if value in self.algebra.sums:
            rest, rows = self._earliest(self.algebra.sums[value])
            return max(self._stage_of(expression(rest)) + 1, self._stage_of(expression(rows)))
        if value in self.algebra.group_sums:
            return self._stage_of(expression(self.algebra.group_sums[value]))
        if value in self.named:
            return max(self._stage_of(expression(term)) for term in self._settled(self.named[value], value.name))
        statement = None if value.name in self.loaded else self.dots.get(value, self.forward.get(value.name))
        if isinstance(statement, Map):
            return self._stage_of(statement.expr)
        if isinstance(statement, Reduce):
            return max(map(self._stage_of, statement.args)) + is_stage(statement)
        return 0

    # -- names ---------------------------------------------------------------------------------------------

    def _sum_name(self, rest: Monomial) -> str:
        """dy_xhat_sum for sum(dy * xhat): cotangents first."""
        if rest in self.algebra.counts:
            return f"{self.algebra.counts[rest]}_count"
        ordered = sorted(rest, key=lambda f: (f[0] not in self.named and not str(f[0]).startswith("d"), str(f[0])))
        names = [self._atom_name(a) for a, p in ordered for _ in range(max(1, abs(int(p))))]
        return "_".join([*names, "sum"])

    def _atom_name(self, atom: sp.Expr) -> str:
        if atom in self.algebra.sums:
            return self._sum_name(self.algebra.sums[atom])
        if atom in self.algebra.group_sums:
            return self._sum_name(self.algebra.group_sums[atom])
        if (extremum := self.algebra.counts.get(((atom, sp.Integer(1)),))) is not None:
            return f"is_{extremum}"
        if atom.is_Symbol:
            return str(atom.name)
        return term_name(atom)

"""The identities of one forward program, as rewriting of power products.

Gradients cancel only when equal things look equal, so every product is brought to one form:

    (var + eps)**(-3/2)       -> rstd**3            a value's definition, solved for its one unnamed term
    x - mean                  -> xhat / rstd        the same, where rstd is a factor (see `settled`)
    x_sum                     -> mean * cols
    sum(dy * rstd * (x-mean)) -> sum(dy * xhat)     row factors leave a row reduction
    sum(x - mean)             -> 0                  because sum(x) = mean * cols
    sum(exp(x - max) / s)     -> 1                  because sum(exp(x - max)) = s; in groups of columns as well
    exp(x - max) -> s*exp(y)  where y = x - max - log(s) is saved: an output solved for what it was shifted from

`settled` undoes a solved definition wherever it would leave a division behind that the forward does not
make: x - mean stays x - mean unless its gradient brings the factor rstd.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import sympy as sp

from normgen.program.gradient.defined import Defined
from normgen.program.gradient.monomials import (
    UNIT,
    Monomial,
    Poly,
    Product,
    add_into,
    expression,
    factors,
    monomial,
    multiplied,
    raised,
)
from normgen.program.ir import COLS, SIZES, Load, Map, Random, Reduce, Statement, defined_names, kind_of
from normgen.program.monoid import SUM, symbol
from normgen.program.ordered import is_kept
from normgen.spec.spec import Kind

_ONE = sp.Integer(1)


class Algebra:
    """Rewriting rules of the forward statements; `saved` names the values that are loaded, not recomputed."""

    def __init__(self, statements: Iterable[Statement], kinds: Mapping[str, Kind], saved: frozenset[str]) -> None:
        self.kinds = dict(kinds)
        self.saved = saved
        self.definitions: dict[sp.Symbol, sp.Expr] = {}
        self.origin: dict[sp.Symbol, tuple[sp.Expr, dict[sp.Expr, sp.Rational]]] = {}  # xhat: x - mean, its product
        self.sums: dict[sp.Symbol, Monomial] = {}
        self.group_sums: dict[sp.Symbol, Monomial] = {}
        self.counts: dict[Monomial, str] = {}  # how many elements are an extremum -> its name
        self.group = next((s.group for s in statements if isinstance(s, Reduce) and s.group), 0)
        self._rules: dict[sp.Expr, Product] = {}
        self._names: dict[sp.Expr, sp.Symbol] = {}
        self._shifts: dict[sp.Symbol, sp.Expr] = {}
        self._known_sums: dict[Monomial, Product] = {}
        self._known_group_sums: dict[Monomial, Product] = {}
        self._sum_of: dict[Monomial, sp.Symbol] = {}
        self._group_sum_of: dict[Monomial, sp.Symbol] = {}
        self._loads = {symbol(s.name) for s in statements if isinstance(s, Load | Random)}
        self._max_values = {symbol(s.names[0]) for s in statements if isinstance(s, Reduce) and s.monoid.name == "max"}
        self._defined = Defined(statements, self.kinds)
        maps = [s for s in statements if isinstance(s, Map)]
        for statement in maps:
            self.definitions[symbol(statement.name)] = statement.expr
        for statement in maps:
            self._add_shift(symbol(statement.name), statement.expr)
        for statement in maps:
            self._add_definition(symbol(statement.name), statement.expr)
        for reduce in (s for s in statements if isinstance(s, Reduce) and s.monoid is SUM and not s.is_of_side):
            self._add_known_sum(symbol(defined_names(reduce)[0]), reduce.args[0], in_groups=bool(reduce.group))

    def kind(self, expr: sp.Expr) -> Kind:
        return kind_of(expr, self.kinds)

    # -- rules ---------------------------------------------------------------------------------------------

    def _add_shift(self, value: sp.Symbol, expr: sp.Expr) -> None:
        """A saved y = x - rows gives x = y + rows; a saved lse = max + log(s) gives max = lse - log(s)."""
        if value.name not in self.saved or not expr.is_Add:
            return
        kind = self.kinds[value.name]
        own = [t for t in expr.args if self.kind(t).is_elem] if kind.is_elem else self._maxima(expr.args)
        rest = [t for t in expr.args if t not in own]
        if len(own) != 1 or not own[0].is_Symbol or own[0].name in self.saved:
            return
        if not any(self.kind(t).within_row for t in rest):
            self._shifts[own[0]] = self._with_logs(value - sp.Add(*rest))

    def _maxima(self, terms: Iterable[sp.Expr]) -> list[sp.Expr]:
        return [t for t in terms if t in self._max_values]

    def _with_logs(self, expr: sp.Expr) -> sp.Expr:
        """`expr` with row values that hold a logarithm written out, so that exp meets log."""
        logs = {s: self.definitions[s] for s in expr.free_symbols if s.name not in self.saved and self._has_log(s)}
        return expr.xreplace(logs)

    def _has_log(self, value: sp.Symbol) -> bool:
        """A logarithm of what is negative in every row, NaN, stays a name: sympy compares real numbers only."""
        terms = sp.Add.make_args(self.definitions.get(value, sp.Integer(0)))
        return any(isinstance(t, sp.log) and t.is_extended_real is not False for t in terms)

    def _add_definition(self, value: sp.Symbol, expr: sp.Expr) -> None:
        shifted = self._shifted(expr)
        if value.name not in self.saved and shifted != expr and not shifted.free_symbols & set(self._shifts):
            self._rules[value] = self.product(factors(shifted))
            return
        number, powers = self.product(factors(self._with_logs(expr)))
        if not expr.args:  # col has no name: col - y_part would become y_part - y_part, which is 0 to sympy
            return
        if number == 1 and list(powers.values()) == [1] and not next(iter(powers)).is_Symbol:
            term = next(iter(powers))
            self._names.setdefault(term, value)
            self._rules.setdefault(term, (_ONE, {value: _ONE}))
            return
        if not expr.is_number:  # algebra makes a number of x/x
            self._names.setdefault(expr, value)
        term_and_rest = self._solvable(value, powers)
        if term_and_rest is None:
            return
        term, rest = term_and_rest
        if number != 1:  # `origin` has no place for a number
            if self.kinds[value.name].is_groups and not rest and powers[term] == 1:  # the mean of a group
                self._rules.setdefault(term, (1 / number, {value: _ONE}))
            return
        inverse = 1 / powers[term]
        solved = multiplied({value: inverse}, raised(rest, -inverse))
        if term not in self._rules:
            self._rules[term] = (_ONE, solved)
            self.origin[value] = (term, dict(powers))

    def _solvable(
        self, value: sp.Symbol, powers: Mapping[sp.Expr, sp.Rational]
    ) -> tuple[sp.Expr, dict[sp.Expr, sp.Rational]] | None:
        """The one term that a product may be solved for, and the rest of the product.

        The rest is row values only: a parameter may be 0.
        """
        kind = self.kinds[value.name]
        if kind is Kind.SCALAR:
            return None
        own = [a for a in powers if a not in SIZES and self.kind(a) is kind]
        if len(own) != 1 or not (1 / powers[own[0]]).is_Integer:
            return None
        term = own[0]
        if term in self.origin and kind.is_elem:
            return None
        rest = {a: p for a, p in powers.items() if a != term}
        if any(a not in SIZES and self.kind(a).within_row for a in rest) or not self._is_never_0(rest):
            return None
        has_others = kind.within_row or rest.keys() - {*SIZES}
        if powers[term] < 0 and has_others:  # r / x is 0 where r is, and x = r / (r / x)
            return None
        has_rows = any(a not in SIZES and self.kind(a).is_row for a in rest)
        is_at_hand = term.is_Symbol and (term.name in self.saved or term in self._loads)
        return None if is_at_hand and not has_rows else (term, rest)

    def _is_never_0(self, powers: Mapping[sp.Expr, sp.Rational] | Monomial) -> bool:
        """Whether none of the factors is ever 0, as an argmin is: x / 0 * 0 is no x."""
        return all(a in SIZES or self._defined.is_never_0(a) for a in dict(powers))

    def _add_known_sum(self, total: sp.Symbol, arg: sp.Expr, *, in_groups: bool) -> None:
        number, powers = self.product(factors(arg))
        outside, rest = self.split_groups(powers) if in_groups else self.split(powers)
        if not self._is_never_0(outside):
            return
        total_number, total_powers = self.product((_ONE, {total: _ONE}))
        found = (total_number / number, multiplied(total_powers, raised(outside, sp.Integer(-1))))
        (self._known_group_sums if in_groups else self._known_sums).setdefault(rest, found)

    # -- one form ------------------------------------------------------------------------------------------

    def product(self, product: Product) -> Product:
        """The canonical form of a product."""
        number, given = product
        result: dict[sp.Expr, sp.Rational] = {}
        waiting = list(given.items())
        while waiting:
            atom, exponent = waiting.pop()
            factor, powers = self._replacement(atom, exponent)
            number = number * factor
            if powers is None:
                result = multiplied(result, {atom: exponent})
            else:
                waiting.extend(powers.items())
        return number, {a: p for a, p in result.items() if p != 0}

    def _replacement(
        self, atom: sp.Expr, exponent: sp.Rational
    ) -> tuple[sp.Expr, Mapping[sp.Expr, sp.Rational] | None]:
        if atom in self._rules:
            number, powers = self._rules[atom]
            if not self.parts(powers, exponent, number):
                return _ONE, None
            return number**exponent, raised(powers, exponent)
        if atom.is_Add and exponent.is_Integer and -atom in self._rules:
            return (-_ONE) ** exponent, {-atom: exponent}
        renamed = atom if atom.is_Symbol else self._renamed(self._shifted(atom))
        if renamed != atom and not renamed.is_number:  # v - round(x), where v is the name of round(x), would be 0
            number, powers = factors(renamed)
            if self.parts(powers, exponent, number):
                return number**exponent, raised(powers, exponent)
        return _ONE, None

    def _renamed(self, expr: sp.Expr) -> sp.Expr:
        """`expr` by the names of its parts, but for what sympy would fold: part - z, part the name of z, is 0 to it."""
        if expr in self._names:
            return self._names[expr]
        args = tuple(map(self._renamed, expr.args))
        if args == expr.args:
            return expr
        found = expr.func(*args)
        return found if is_kept(expr, args, found) else expr

    def parts(self, powers: Mapping[sp.Expr, sp.Rational], exponent: sp.Rational, number: sp.Expr = _ONE) -> bool:
        """Whether a power of a product is the product of its factors' powers: a root of two negative ones is none."""
        if exponent.is_Integer:
            return True
        signed = [p for a, p in powers.items() if not (self._defined.is_never_negative(a) or a in SIZES)]
        return bool(number > 0) and len(signed) <= 1 and all(abs(p) == 1 for p in signed)

    def _shifted(self, expr: sp.Expr) -> sp.Expr:
        if not self._shifts or not expr.free_symbols & set(self._shifts):
            return expr
        return self._with_logs(expr).xreplace(self._shifts)

    def poly(self, terms: Poly) -> Poly:
        """The canonical form of a sum."""
        result: Poly = {}
        for term, number in terms.items():
            found, powers = self.product((number, dict(term)))
            add_into(result, {monomial(powers): found})
        return result

    def times(self, left: Poly, right: Poly) -> Poly:
        """left * right, canonical."""
        result: Poly = {}
        for a, m in left.items():
            for b, n in right.items():
                number, powers = self.product((m * n, multiplied(a, b)))
                add_into(result, {monomial(powers): number})
        return result

    def split(self, powers: Mapping[sp.Expr, sp.Rational] | Monomial) -> tuple[Monomial, Monomial]:
        """Factors that are constant along a row, and the rest."""
        return _parted(powers, {a for a in dict(powers) if a in SIZES or not self.kind(a).within_row})

    def split_groups(self, powers: Mapping[sp.Expr, sp.Rational] | Monomial) -> tuple[Monomial, Monomial]:
        """Factors that are constant in a group of columns, and the rest."""
        return _parted(powers, {a for a in dict(powers) if a in SIZES or not self.kind(a).by_col})

    # -- row reductions ------------------------------------------------------------------------------------

    def row_sum(self, poly: Poly) -> Poly:
        """sum(poly) over the columns: row factors outside, identities applied, the rest named sums."""
        total: Poly = {}
        for term, number in poly.items():
            rows, rest = self.split(term)
            add_into(total, self.times({rows: number}, self._sum_term(rest)))
        return total

    def _sum_term(self, rest: Monomial) -> Poly:
        found = self._identity(rest)
        return {((self.sum_symbol(rest), _ONE),): _ONE} if found is None else found

    def _identity(self, rest: Monomial) -> Poly | None:
        if rest == UNIT:
            return {((COLS, _ONE),): _ONE}
        if rest in self._known_sums:
            number, powers = self._known_sums[rest]
            return self.poly({monomial(powers): number})
        if len(rest) == 1 and rest[0][1] == 1:
            return self._centred(rest[0][0])
        return None

    def _centred(self, atom: sp.Expr, *, in_groups: bool = False) -> Poly | None:
        """sum(x - mean) where every term's sum is known; only a constant is worth having."""
        known = self._known_group_sums if in_groups else self._known_sums
        term, powers = self.origin.get(atom, (atom, {atom: _ONE}))
        if powers.get(term) != 1:
            return None
        rest = {a: p for a, p in powers.items() if a != term}
        term = self.definitions.get(term, term)
        if not term.is_Add:
            return None
        total: Poly = {}
        for part in term.args:
            number, product = self.product(factors(part))
            outside, elems = self.split_groups(product) if in_groups else self.split(product)
            if elems != UNIT and elems not in known:
                return None
            found = self._group_sum_term(elems) if in_groups else self._identity(elems)
            add_into(total, self.times({outside: number}, found or {}))
        total = self.times(total, {monomial(rest): _ONE})
        return total if set(total) <= {UNIT} else None

    def sum_symbol(self, rest: Monomial) -> sp.Symbol:
        """The row value sum(rest)."""
        if rest not in self._sum_of:
            value = sp.Symbol(f"sum[{expression(rest)}]", real=True)
            self._sum_of[rest] = value
            self.sums[value] = rest
            self.kinds[value.name] = Kind.ROW
        return self._sum_of[rest]

    def group_sum(self, poly: Poly) -> Poly:
        """sum(poly) over each group of columns: its values outside, identities applied, the rest named sums."""
        total: Poly = {}
        for term, number in poly.items():
            outside, rest = self.split_groups(term)
            add_into(total, self.times({outside: number}, self._group_sum_term(rest)))
        return total

    def _group_sum_term(self, rest: Monomial) -> Poly:
        if rest == UNIT:
            return {UNIT: sp.Integer(self.group)}
        if rest in self._known_group_sums:
            number, powers = self._known_group_sums[rest]
            return self.poly({monomial(powers): number})
        if len(rest) == 1 and rest[0][1] == 1 and (found := self._centred(rest[0][0], in_groups=True)) is not None:
            return found
        if rest not in self._group_sum_of:
            value = sp.Symbol(f"group_sum[{expression(rest)}]", real=True)
            self._group_sum_of[rest] = value
            self.group_sums[value] = rest
            self.kinds[value.name] = Kind.GROUPS
        return {((self._group_sum_of[rest], _ONE),): _ONE}

    # -- undoing -------------------------------------------------------------------------------------------

    def settled(self, poly: Poly) -> Poly:
        """`poly` with solved definitions undone wherever they leave a division that the forward lacks."""
        result: Poly = {}
        for term, number in poly.items():
            found, powers = number, dict(term)
            while (step := self._undo(powers)) is not None:
                found, powers = found * step[0], dict(step[1])
            add_into(result, {monomial(powers): found})
        return result

    def _undo(self, powers: Mapping[sp.Expr, sp.Rational]) -> Product | None:
        divisors = {a for a, p in powers.items() if p < 0 and a.is_Symbol and a not in SIZES}
        for atom, exponent in sorted(powers.items(), key=lambda f: str(f[0])):
            if atom in self.origin and exponent >= 1 and self._divides(atom, divisors):
                return _ONE, multiplied(powers, {atom: -_ONE}, self.unsolved(atom))
            if atom in self.sums and exponent >= 1:
                for inner, power in self.sums[atom]:
                    if self.opens(inner, power) and self._divides(inner, divisors):
                        rest, rows = self.opened(self.sums[atom], inner)
                        return _ONE, multiplied(powers, {atom: -_ONE, self.sum_symbol(rest): _ONE}, rows)
        for atom in sorted(divisors, key=str):
            number, definition = factors(self.definitions.get(atom, atom))
            exponent = powers[atom]
            own = {a: p for a, p in definition.items() if a not in SIZES and self.kind(a).is_row}
            # 1 / x, not s / (x * s), which is no number where s is none.
            is_multiplied = all(powers.get(a, 0) >= -exponent * p for a, p in own.items())
            is_undone = atom in self.origin and own and (all(p < 0 for p in own.values()) or is_multiplied)
            if is_undone and self.parts(definition, exponent, number):
                return number**exponent, multiplied(powers, {atom: -exponent}, raised(definition, exponent))
        return None

    def _divides(self, value: sp.Symbol, divisors: set[sp.Expr]) -> bool:
        """Whether solving for the value's term brought one of the divisors."""
        _, powers = self.origin[value]
        return any(powers.get(d, 0) > 0 for d in divisors)

    def opens(self, value: sp.Expr, exponent: sp.Rational) -> bool:
        """Whether a value was solved for a term, and its power is that of its product."""
        return value in self.origin and self.parts(self.unsolved(value), exponent)

    def unsolved(self, value: sp.Symbol) -> dict[sp.Expr, sp.Rational]:
        """xhat -> (x - mean) * rstd"""
        return self.origin[value][1]

    def opened(self, rest: Monomial, value: sp.Symbol) -> tuple[Monomial, Monomial]:
        """sum(.. xhat ..) = rows * sum(..(x - mean)..): the new term and the row factors that left it."""
        exponent = dict(rest)[value]
        powers = multiplied(rest, {value: -exponent}, raised(self.unsolved(value), exponent))
        rows, elems = self.split(powers)
        return elems, rows


def _parted(
    powers: Mapping[sp.Expr, sp.Rational] | Monomial, outside: Collection[sp.Expr]
) -> tuple[Monomial, Monomial]:
    """The factors that are `outside`, and the others."""
    pairs = dict(powers)
    inside = monomial({a: p for a, p in pairs.items() if a not in outside})
    return monomial({a: p for a, p in pairs.items() if a in outside}), inside

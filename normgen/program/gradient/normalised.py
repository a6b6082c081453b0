"""Name the terms of a forward program that its gradient is written in.

`xhat`: the product of an elem term and the row values computed from it, such as (x - mean) * rstd. The
textbook gradients are short because they are written in it. A row value written inside an elem expression,
such as (x_sum + eps)**(-1/2), becomes a row map, so that its gradient is taken once per row. What the extremum of a
group is taken of has a name, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import sympy as sp

from normgen.program.ir import (
    SIZES,
    Load,
    Map,
    Random,
    Reduce,
    RowProgram,
    Statement,
    Store,
    defined_names,
    free_name,
    kind_of,
    used_exprs,
)
from normgen.program.monoid import symbol
from normgen.program.ordered import is_kept, is_product, opened, settled
from normgen.spec.spec import Kind

_POWER_NAMES = {sp.Rational(-1, 2): "rsqrt", sp.Rational(1, 2): "sqrt", sp.Integer(-1): "inv"}


def name_terms(program: RowProgram, taken: set[str]) -> tuple[Statement, ...]:
    """The program's statements without stores, with the terms above as maps of their own.

    New names are added to `taken`. The values do not change: a map's expression is replaced by the name of
    an equal map before it.
    """
    namer = _TermNamer(program, taken)
    for statement in program.statements:
        namer.visit(statement)
    return tuple(namer.statements)


def fresh(wish: str, taken: set[str]) -> str:
    """`wish` as a legal name, or the first of name_2, name_3 ... that is free; it is taken from then on.

    A legal name has words of letters and digits, joined by single underscores, and starts with a letter: a wish that
    was made of an expression may start with a number, or consist of nothing.
    """
    name = "_".join(re.findall("[A-Za-z0-9]+", wish))
    name = name if name[:1].isalpha() else f"term_{name}".rstrip("_")
    name = free_name(name, taken, joint="_")
    taken.add(name)
    return name


def _root(factor: sp.Expr, power: sp.Integer) -> sp.Expr:
    """The factor whose `power`th power `factor` is written as."""
    return sp.Pow(factor.base, factor.exp / power) if factor.is_Pow else sp.Pow(factor, 1 / power)


def _meaning(expr: sp.Expr) -> sp.Expr:
    """What two terms share that may have one name: the opened product, unless something cancels in it.

    z/z and m/m are both 1 to sympy; a kernel has NaN where z is 0, or where m is.
    """
    found = opened(expr)
    is_whole = all(of(found) == of(expr) for of in (lambda e: e.free_symbols, _divisors))
    return found if is_whole else expr


def _divisors(expr: sp.Expr) -> set[sp.Symbol]:
    """The values that something is divided by."""
    powers = (p for p in expr.atoms(sp.Pow) if p.exp.could_extract_minus_sign())
    return set().union(*(p.base.free_symbols for p in powers))


class _TermNamer:
    def __init__(self, program: RowProgram, taken: set[str]) -> None:
        self.kinds: dict[str, Kind] = dict.fromkeys(program.scalars, Kind.SCALAR)
        self.sources: dict[str, frozenset[str]] = dict.fromkeys(program.scalars, frozenset())  # loads behind a value
        self.taken = taken
        self.known: dict[sp.Expr, sp.Symbol] = {}
        self.statements: list[Statement] = []

    def visit(self, statement: Statement) -> None:
        match statement:
            case Store():
                return
            case Map(name=name, kind=kind, expr=expr) if kind.is_elem:
                named = settled(self.rewritten(expr, is_whole=True))
                self.known.setdefault(_meaning(named), symbol(name))
                self.append(Map(name, kind, named))
            case Map(name=name, expr=expr):
                self.known.setdefault(_meaning(expr), symbol(name))
                self.append(statement)
            case Reduce() if statement.is_dot or statement.is_of_side:
                self.append(statement)
            case Reduce(args=args):
                self.append(replace(statement, args=tuple(self.reduced(statement, arg) for arg in args)))
            case Load() | Random():
                self.append(statement)

    def reduced(self, statement: Reduce, expr: sp.Expr) -> sp.Expr:
        """What is reduced: of an extremum of groups a value by itself, as each element is compared with its group's."""
        named = settled(self.rewritten(expr, is_whole=False))
        is_compared = statement.group and statement.monoid.is_idempotent and not named.is_Symbol
        return self.new_map(f"{statement.names[0]}_term", Kind.ELEM, named) if is_compared else named

    def append(self, statement: Load | Random | Reduce | Map) -> None:
        read = [s.name for e in used_exprs(statement) for s in e.free_symbols if s not in SIZES]
        for name in defined_names(statement):
            self.kinds[name] = statement.kind
            self.sources[name] = frozenset({name}) if isinstance(statement, Load | Random) else self.loads(read)
        self.statements.append(statement)

    def loads(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*(self.sources[n] for n in names))

    def sources_of(self, expr: sp.Expr) -> frozenset[str]:
        return self.loads(s.name for s in expr.free_symbols if s not in SIZES)

    def rewritten(self, expr: sp.Expr, *, is_whole: bool) -> sp.Expr:
        """`expr` with its terms named; `is_whole` when a map of the program already names all of it."""
        if not expr.args or expr.is_number:
            return expr
        args = tuple(self.rewritten(arg, is_whole=False) for arg in expr.args)
        if args != expr.args and is_kept(expr, args, found := expr.func(*args)):
            expr = found
        if not is_whole and (known := self.known.get(_meaning(expr))):
            return known
        if expr.is_Pow and expr.base.is_Add and kind_of(expr, self.kinds).is_row:
            return expr if is_whole else self.row_power(expr)
        return self.normalised(expr, is_whole=is_whole) if is_product(expr) else expr

    def row_power(self, expr: sp.Expr) -> sp.Symbol:
        values = sorted(s.name for s in expr.free_symbols if s not in SIZES and self.kinds[s.name].is_row)
        return self.new_map("_".join([_POWER_NAMES.get(expr.exp, "power"), *values]), Kind.ROW, expr)

    def new_map(self, name: str, kind: Kind, expr: sp.Expr) -> sp.Symbol:
        value = symbol(fresh(name, self.taken))
        self.known[_meaning(expr)] = value
        self.append(Map(value.name, kind, expr))
        return value

    def normalised(self, expr: sp.Expr, *, is_whole: bool) -> sp.Expr:
        rows = [f for f in expr.args if not f.is_number and kind_of(f, self.kinds).is_row]
        elems = [f for f in expr.args if kind_of(f, self.kinds).is_elem]
        for elem in elems:
            own = [r for r in rows if self.sources_of(r) & self.sources_of(elem)]
            if own:
                return self.with_hat(expr, elem, own, is_whole=is_whole)
        return expr

    def with_hat(self, expr: sp.Expr, elem: sp.Expr, rows: list[sp.Expr], *, is_whole: bool) -> sp.Expr:
        """elem * rows * others -> xhat**power * others"""
        power = self.common_power(elem, rows)
        centre = _root(elem, power)
        roots = [_root(r, power) for r in rows]
        core = sp.Mul(centre, *roots)
        value = self.known.get(core)
        if value is None:
            value, used = self.longest_known(centre, roots)
        else:
            used = roots
        if value is None:
            if core == opened(expr) and is_whole:
                return expr
            value, used = self.new_map(self.hat_name(centre), Kind.ELEM, core), roots
        factors = list(expr.args)  # each is taken once: of (x * x) * (x * x) / s / s one bracket stays, and one divisor
        factors[factors.index(elem)] = sp.Pow(value, power)
        for root in used:
            factors.remove(sp.Pow(root, power))
        return expr.func(*factors)

    def longest_known(self, centre: sp.Expr, roots: list[sp.Expr]) -> tuple[sp.Symbol | None, list[sp.Expr]]:
        """A map known already that is the centre times some of the row factors."""
        for factor in roots:
            value = self.known.get(sp.Mul(centre, factor))
            if value is not None:
                return value, [factor]
        return None, []

    def common_power(self, elem: sp.Expr, rows: list[sp.Expr]) -> sp.Integer:
        """3 for (x - mean)**3 * rstd**3, which sympy makes of ((x - mean) * rstd)**3."""
        powers = [f.exp if f.is_Pow else sp.Integer(1) for f in (elem, *rows)]
        if powers[0].is_Integer and powers[0] > 1 and all((p / powers[0]).is_Integer for p in powers):
            return powers[0]
        return sp.Integer(1)

    def hat_name(self, centre: sp.Expr) -> str:
        """xhat for a term in one elem value x; input_hat for longer names."""
        elems = sorted(s.name for s in centre.free_symbols if s not in SIZES and self.kinds[s.name].is_elem)
        name = elems[0] if elems else "row"
        return f"{name}hat" if len(name) == 1 else f"{name}_hat"

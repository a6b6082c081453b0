"""Name the terms of a forward program that its gradient is written in.

`xhat`: the product of an elem term and the row values computed from it, such as (x - mean) * rstd. The
textbook gradients are short because they are written in it. A row value written inside an elem expression,
such as (x_sum + eps)**(-1/2), becomes a row map, so that its gradient is taken once per row.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy as sp

from normgen.program.ir import COLS, Load, Map, Reduce, RowProgram, Statement, Store, defined_names, join, used_exprs
from normgen.program.monoid import symbol
from normgen.spec import Kind

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


def fresh(name: str, taken: set[str]) -> str:
    """`name`, or the first of name_2, name_3 ... that is free; it is taken from then on."""
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate


def kind_of(expr: sp.Expr, kinds: dict[str, Kind]) -> Kind:
    """The join of the kinds of what `expr` reads."""
    return join(kinds[s.name] for s in expr.free_symbols if s != COLS)


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
            case Map(name=name, kind=Kind.ELEM, expr=expr):
                named = self.rewritten(expr, is_whole=True)
                self.known.setdefault(named, symbol(name))
                self.append(Map(name, Kind.ELEM, named))
            case Map(name=name, expr=expr):
                self.known.setdefault(expr, symbol(name))
                self.append(statement)
            case Reduce(names=names, kind=kind, monoid=monoid, args=args):
                self.append(Reduce(names, kind, monoid, tuple(self.rewritten(a, is_whole=False) for a in args)))
            case Load():
                self.append(statement)

    def append(self, statement: Load | Reduce | Map) -> None:
        read = [s.name for e in used_exprs(statement) for s in e.free_symbols if s != COLS]
        for name in defined_names(statement):
            self.kinds[name] = statement.kind
            self.sources[name] = frozenset({name}) if isinstance(statement, Load) else self.loads(read)
        self.statements.append(statement)

    def loads(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*(self.sources[n] for n in names))

    def sources_of(self, expr: sp.Expr) -> frozenset[str]:
        return self.loads(s.name for s in expr.free_symbols if s != COLS)

    def rewritten(self, expr: sp.Expr, *, is_whole: bool) -> sp.Expr:
        """`expr` with its terms named; `is_whole` when a map of the program already names all of it."""
        if not expr.args or expr.is_number:
            return expr
        args = tuple(self.rewritten(arg, is_whole=False) for arg in expr.args)
        expr = expr if args == expr.args else expr.func(*args)
        if expr in self.known and not is_whole:
            return self.known[expr]
        if expr.is_Pow and expr.base.is_Add and kind_of(expr, self.kinds) is Kind.ROW:
            return expr if is_whole else self.row_power(expr)
        return self.normalised(expr, is_whole=is_whole) if expr.is_Mul else expr

    def row_power(self, expr: sp.Expr) -> sp.Symbol:
        values = sorted(s.name for s in expr.free_symbols if s != COLS and self.kinds[s.name] is Kind.ROW)
        return self.new_map("_".join([_POWER_NAMES.get(expr.exp, "power"), *values]), Kind.ROW, expr)

    def new_map(self, name: str, kind: Kind, expr: sp.Expr) -> sp.Symbol:
        value = symbol(fresh(name, self.taken))
        self.known[expr] = value
        self.append(Map(value.name, kind, expr))
        return value

    def normalised(self, expr: sp.Expr, *, is_whole: bool) -> sp.Expr:
        rows = [f for f in expr.args if not f.is_number and kind_of(f, self.kinds) is Kind.ROW]
        elems = [f for f in expr.args if kind_of(f, self.kinds) is Kind.ELEM]
        behind_rows = self.sources_of(sp.Mul(*rows))
        centres = [f for f in elems if self.sources_of(f) & behind_rows]
        if not rows or not centres:
            return expr
        core = sp.Mul(centres[0], *rows)
        if core == expr and is_whole:
            return expr
        others = [f for f in expr.args if f is not centres[0] and f not in rows]
        value = self.known.get(core)
        if value is None:
            value = self.new_map(self.hat_name(centres[0]), Kind.ELEM, core)
        return sp.Mul(*others, value)

    def hat_name(self, centre: sp.Expr) -> str:
        """xhat for a term in one elem value x; input_hat for longer names."""
        elems = sorted(s.name for s in centre.free_symbols if s != COLS and self.kinds[s.name] is Kind.ELEM)
        name = elems[0] if elems else "row"
        return f"{name}hat" if len(name) == 1 else f"{name}_hat"

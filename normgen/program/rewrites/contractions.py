"""Factors leave a contraction's sum.

    reduce y : elem = dot_inner(x*rstd, w*scale)   ->   reduce y_dot : elem = dot_inner(x, w)
                                                        map    y : elem = y_dot*rstd*scale

A factor that does not vary along the axis that is dropped multiplies each product alike: Σ (a x)(b y) = a b Σ x y. With
the factors outside, the inner axis is read once, although rstd is known behind it only. What is rounded by a `cast`, or
an argument of another function, is no product, and its factors stay. Contractions that are equal then are one.

A factor that varies along the dropped axis alone goes to the side that is rounded anyway, so that the other side is
what is stored, and tensor cores multiply both:

    reduce dv : batch_matrix = dot_rows(cast(p, bf16), dy*r)   ->   dot_rows(cast(p*r, bf16), dy)

A product is rounded by as large a share of itself as its factor is, in a dtype of float32's range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import sympy as sp

from normgen.dtypes import F32, DType
from normgen.program.cleanup import without_dead_code
from normgen.program.functions import cast
from normgen.program.ir import Map, Reduce, RowProgram, Statement, check, free_name, kind_of, value_kinds
from normgen.program.monoid import symbol
from normgen.program.ordered import is_product, product, settled
from normgen.spec.spec import Kind


def factors_leave(program: RowProgram) -> RowProgram:
    """The program whose contractions have the factors of their sides behind them that the sums do not need."""
    kinds = value_kinds(check(program))
    inside = {symbol(m.name): m.expr for m in program.maps if m.kind.is_matrix}
    found: dict[tuple[sp.Expr, ...], sp.Symbol] = {}
    statements: list[Statement] = []
    for statement in program.statements:
        if not (isinstance(statement, Reduce) and statement.is_dot):
            statements.append(statement)
            continue
        (name,), sides = statement.names, [_parted(e, statement.over, kinds, inside) for e in statement.args]
        args, factors = tuple(side[0] for side in sides), tuple(f for side in sides for f in side[1])
        if args not in found:
            own = free_name(name if name.endswith("_dot") else f"{name}_dot", kinds) if factors else name
            kinds[own] = statement.kind
            statements.append(replace(statement, names=(own,), args=args))
            found[args] = symbol(own)
        if found[args] != symbol(name):
            statements.append(Map(name, statement.kind, _product(found[args], *factors)))
    return check(without_dead_code(check(replace(program, statements=tuple(statements)))))


def factors_join(program: RowProgram) -> RowProgram:
    """The program whose rounded sides have the factors of the other sides that vary along the dropped axis alone."""
    kinds = value_kinds(check(program))
    inside = {symbol(m.name): m.expr for m in program.maps if len(m.kind.axes) > 1}

    def joined(dot: Reduce) -> Reduce:
        for at, side in enumerate(dot.args):
            factors = _factors(dot.args[1 - at], inside)
            moved = [f for f in factors if kind_of(f, kinds) is dot.over]
            if isinstance(side, cast) and _has_range(side.dtype) and moved and len(moved) < len(factors):
                rounded = cast(_product(side.args[0], *moved), side.args[1])
                other = _product(*(f for f in factors if f not in moved))
                return replace(dot, args=(rounded, other) if at == 0 else (other, rounded))
        return dot

    statements = (joined(s) if isinstance(s, Reduce) and s.is_dot else s for s in program.statements)
    return check(without_dead_code(check(replace(program, statements=tuple(statements)))))


def _has_range(dtype: DType) -> bool:
    """Whether what is rounded to fewer digits overflows, and is lost, where it does in float32."""
    return dtype is not F32 and not dtype.is_coarse and dtype.smallest_normal <= F32.smallest_normal


def _parted(
    side: sp.Expr, over: Kind, kinds: Mapping[str, Kind], inside: Mapping[sp.Symbol, sp.Expr]
) -> tuple[sp.Expr, tuple[sp.Expr, ...]]:
    """The side without the factors that do not vary along `over`, and these, in the author's order."""
    kept: list[sp.Expr] = []
    leaving: list[sp.Expr] = []
    for factor in _factors(side, inside):
        (kept if over in kind_of(factor, kinds) else leaving).append(factor)
    return (_product(*kept), tuple(leaving)) if leaving else (side, ())


def _factors(expr: sp.Expr, inside: Mapping[sp.Symbol, sp.Expr]) -> list[sp.Expr]:
    """The factors of a product, of the products in it, and of those that have a name."""
    if expr in inside:
        return _factors(inside[expr], inside)
    return [f for arg in expr.args for f in _factors(arg, inside)] if is_product(expr) else [expr]


def _product(*factors: sp.Expr) -> sp.Expr:
    return settled(reduce(product, factors))

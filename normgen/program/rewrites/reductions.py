"""Rewrites of a RowProgram that change rounding and the number of looks at a row, never the real-number result.

    variance   two_pass        Σ(e - μ)²  as written: two stages
               sum_of_squares  max(Σe² - cols·μ², 0): one stage; cancels when |μ| is large against the spread
               shifted         with d = e - e[0]:  μ = e[0] + Σd/cols,  Σ(e - μ)² = max(Σd² - cols·(Σd/cols)², 0):
                               one stage (Chan, Golub and LeVeque 1983, eq. 1.5)
               welford         (count, μ, M2) as one monoid: one stage
    softmax    two_pass        max e, then Σexp(e - max e)
               online          (max, Σ) as one monoid: one stage

Patterns are found in the algebra, not by name: any Σ(e - Σe/cols)² is a variance, any Σexp(e - max e) a softmax
denominator, whatever e is. A rewrite without a pattern to work on returns the program unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import sympy as sp

from normgen.errors import UsageError, did_you_mean
from normgen.program.cleanup import without_dead_code
from normgen.program.ir import (
    COLS,
    Load,
    Map,
    Reduce,
    RowProgram,
    Statement,
    Store,
    check,
    defined_names,
    used_names,
    value_kinds,
)
from normgen.program.monoid import MAX, ONLINE_SOFTMAX, SUM, WELFORD, symbol
from normgen.program.ordered import square
from normgen.schedule.knobs import Softmax, Variance
from normgen.spec.spec import Kind

VARIANCE: tuple[str, ...] = tuple(Variance)
SOFTMAX: tuple[str, ...] = tuple(Softmax)


def applicable(program: RowProgram) -> dict[str, tuple[str, ...]]:
    """Knob -> the values that give different programs; a knob without a pattern has its first value only."""
    return {
        "variance": VARIANCE if _variances(program) else VARIANCE[:1],
        "softmax": SOFTMAX if _denominators(program) else SOFTMAX[:1],
    }


def variance(program: RowProgram, method: str) -> RowProgram:
    """Every variance of the program computed by `method`, one of VARIANCE.

    Errors: UsageError for an unknown method.
    """
    ways = {"sum_of_squares": _sum_of_squares, "shifted": _shifted, "welford": _welford}
    _known(method, VARIANCE, "variance")
    if method == "two_pass":
        return check(program)
    return _replace_each(program, _variances, ways[method])


def softmax(program: RowProgram, method: str) -> RowProgram:
    """Every softmax denominator of the program computed by `method`, one of SOFTMAX.

    Errors: UsageError for an unknown method.
    """
    _known(method, SOFTMAX, "softmax")
    if method == "two_pass":
        return check(program)
    return _replace_each(program, _denominators, _online)


def _known(method: str, known: tuple[str, ...], what: str) -> None:
    if method not in known:
        raise UsageError(f"unknown {what} method", received=method, hint=did_you_mean(method, known))


@dataclass(frozen=True)
class _Pair:
    """Two dependent row reductions over the same terms: `first` of `e`, `second` of a function of e and first."""

    first: Reduce
    second: Reduce
    mean: str = ""  # the map that is first/cols, if the program names it

    @property
    def e(self) -> sp.Expr:
        return self.first.args[0]

    @property
    def root(self) -> str:
        """What generated names start with."""
        return self.e.name if self.e.is_Symbol else self.second.names[0]


def _inlined(program: RowProgram) -> Callable[[sp.Expr], sp.Expr]:
    """A function that writes an expression out down to loads, scalars and reductions."""
    written_out: dict[sp.Symbol, sp.Expr] = {}
    for statement in program.maps:
        written_out[symbol(statement.name)] = statement.expr.xreplace(written_out)
    return lambda expr: expr.xreplace(written_out)


def _row_sums(program: RowProgram, name: str) -> list[Reduce]:
    return [r for r in program.row_reduces if r.monoid.name == name]


def _variances(program: RowProgram) -> list[_Pair]:
    """Pairs (Σe, Σ(e - Σe/cols)²)."""
    inline = _inlined(program)
    sums = _row_sums(program, SUM.name)
    means = {m.expr: m.name for m in reversed(program.maps)}
    wanted = {(inline(s.args[0]) - symbol(s.names[0]) / COLS) ** 2: s for s in sums}
    found = []
    for second in sums:
        first = wanted.get(inline(second.args[0]))
        if first is not None:
            found.append(_Pair(first, second, means.get(symbol(first.names[0]) / COLS, "")))
    return found


def _denominators(program: RowProgram) -> list[_Pair]:
    """Pairs (max e, Σexp(e - max e))."""
    inline = _inlined(program)
    tops = {sp.exp(inline(m.args[0]) - symbol(m.names[0])): m for m in _row_sums(program, MAX.name)}
    sums = _row_sums(program, SUM.name)
    return [_Pair(tops[inline(s.args[0])], s) for s in sums if inline(s.args[0]) in tops]


def _replace_each(
    program: RowProgram,
    find: Callable[[RowProgram], list[_Pair]],
    build: Callable[[RowProgram, _Pair], Mapping[str, tuple[Statement, ...]]],
) -> RowProgram:
    """Apply `build` to each pair; it maps defined names of the program to the statements in their place."""
    program = check(program)
    while pairs := find(program):
        statements = build(program, pairs[0])
        replaced: list[Statement] = []
        for statement in program.statements:
            names = defined_names(statement)
            replaced.extend(statements.get(names[0], (statement,)) if names else (statement,))
        program = check(without_dead_code(check(replace(program, statements=tuple(_ordered(replaced))))))
    return program


def _ordered(statements: list[Statement]) -> list[Statement]:
    """Loads first, stores last, the rest moved down no further than what they read."""
    loads = [s for s in statements if isinstance(s, Load)]
    stores = [s for s in statements if isinstance(s, Store)]
    waiting = [s for s in statements if not isinstance(s, Load | Store)]
    undefined = {name for s in waiting for name in defined_names(s)}
    done: list[Statement] = []
    while waiting:
        ready = next(s for s in waiting if not used_names(s) & undefined)
        waiting.remove(ready)
        undefined -= set(defined_names(ready))
        done.append(ready)
    return [*loads, *done, *stores]


def _fresh(program: RowProgram, wish: str) -> str:
    taken = set(value_kinds(program)) | {s.tensor for s in program.stores} | {COLS.name}
    name, count = wish, 1
    while name in taken:
        count += 1
        name = f"{wish}{count}"
    return name


def _sum_of_squares(program: RowProgram, pair: _Pair) -> dict[str, tuple[Statement, ...]]:
    squares, total = _fresh(program, f"{pair.root}_squares"), symbol(pair.first.names[0])
    mean = pair.mean or _fresh(program, f"{pair.root}_mean")
    # The square of the mean, not of the sum: that one overflows on rows whose variance does not.
    left = sp.Max(symbol(squares) - COLS * symbol(mean) ** 2, 0)  # rounding may leave a negative variance
    return {
        pair.second.names[0]: (
            *(() if pair.mean else (Map(mean, Kind.ROW, total / COLS),)),
            Reduce((squares,), Kind.ROW, SUM, (square(pair.e),)),
            Map(pair.second.names[0], Kind.ROW, left),
        )
    }


def _shifted(program: RowProgram, pair: _Pair) -> dict[str, tuple[Statement, ...]]:
    pivot, before = _pivot(program, pair)
    total, squares, offset = (_fresh(program, f"{pair.root}_shifted_{what}") for what in ("sum", "squares", "mean"))
    shifted_sum, difference = symbol(total), pair.e - pivot
    sums = (
        *before,
        Reduce((total,), Kind.ROW, SUM, (difference,)),
        Reduce((squares,), Kind.ROW, SUM, (difference**2,)),
        Map(offset, Kind.ROW, shifted_sum / COLS),
    )
    left = sp.Max(symbol(squares) - COLS * symbol(offset) ** 2, 0)  # not sum²/cols, which overflows earlier
    statements: dict[str, tuple[Statement, ...]] = {
        pair.first.names[0]: (*sums, Map(pair.first.names[0], Kind.ROW, shifted_sum + COLS * pivot)),
        pair.second.names[0]: (Map(pair.second.names[0], Kind.ROW, left),),
    }
    if pair.mean:
        statements[pair.mean] = (Map(pair.mean, Kind.ROW, pivot + symbol(offset)),)
    return statements


def _pivot(program: RowProgram, pair: _Pair) -> tuple[sp.Expr, tuple[Statement, ...]]:
    """The value of `e` in column 0 and the statements that compute it."""
    kinds = value_kinds(program)
    expr, firsts, statements = pair.e, {}, []
    elem_maps = {symbol(m.name): m.expr for m in program.maps if m.kind.by_col}
    while used := expr.free_symbols & elem_maps.keys():
        expr = expr.xreplace({s: elem_maps[s] for s in used})
    for name in sorted(s.name for s in expr.free_symbols if s != COLS):
        if kinds[name].by_col:
            first = _fresh(program, f"{name}_first")
            firsts[symbol(name)] = symbol(first)
            statements.append(Load(first, Kind.ROW, first_of=name))
    value = expr.xreplace(firsts)
    if value.is_Symbol:
        return value, tuple(statements)
    pivot = _fresh(program, f"{pair.root}_pivot")
    return symbol(pivot), (*statements, Map(pivot, Kind.ROW, value))


def _welford(program: RowProgram, pair: _Pair) -> dict[str, tuple[Statement, ...]]:
    total, squares = pair.first.names[0], pair.second.names[0]
    mean = pair.mean or _fresh(program, f"{pair.root}_mean")
    names = (_fresh(program, f"{pair.root}_count"), mean, squares)
    statements: dict[str, tuple[Statement, ...]] = {
        total: (Reduce(names, Kind.ROW, WELFORD, (pair.e,)), Map(total, Kind.ROW, COLS * symbol(mean))),
        squares: (),
    }
    if pair.mean:
        statements[pair.mean] = ()
    return statements


def _online(_program: RowProgram, pair: _Pair) -> dict[str, tuple[Statement, ...]]:
    names = (pair.first.names[0], pair.second.names[0])
    return {names[0]: (Reduce(names, Kind.ROW, ONLINE_SOFTMAX, (pair.e,)),), names[1]: ()}

"""Rewrites of a RowProgram that change rounding and the number of looks at a row, never the real-number result.

    variance   two_pass        Σ(e - μ)²  as written: two stages
               corrected_two_pass  as `shifted` with the sum's mean m = Σe/cols in place of a pivot: two stages. What m
                               is off by is d = Σ(e - m)/cols, so that μ = m + d and Σ(e - μ)² = Σ(e - m)² - cols·d²
                               (Chan, Golub and LeVeque 1983, eq. 1.7). A mean of half the standard deviation or less
                               stays m: d would be less exact than m is
               sum_of_squares  max(Σe² - cols·μ², 0): one stage; cancels when |μ| is large against the spread
               shifted         with a pivot p of the row and d = e - p:  μ = p + Σd/cols,
                               Σ(e - μ)² = max(Σd² - cols·(Σd/cols)², 0): one stage (ibid., eq. 1.5)
               welford         (count, μ, M2) as one monoid: one stage
               guarded         sum_of_squares; of rows where that cancels too much, corrected_two_pass: one stage, and
                               a second one that other rows are spared
    softmax    two_pass        max e, then Σexp(e - max e)
               online          (max, Σ) as one monoid: one stage

Patterns are found in the algebra, not by name: any Σ(e - Σe/cols)² is a variance, any Σexp(e - max e) a softmax
denominator, whatever e is. A rewrite without a pattern to work on returns the program unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import sympy as sp

from normgen.errors import UsageError, did_you_mean
from normgen.knobs import SoftmaxMethod, VarianceMethod
from normgen.program.cleanup import without_dead_code
from normgen.program.functions import constant, greater, where
from normgen.program.ir import (
    COLS,
    Column,
    Guard,
    Load,
    Map,
    Reduce,
    RowProgram,
    Statement,
    Store,
    check,
    defined_names,
    free_name,
    kind_of,
    used_names,
    value_kinds,
)
from normgen.program.monoid import MAX, ONLINE_SOFTMAX, SUM, WELFORD, symbol
from normgen.program.ordered import is_kept, square
from normgen.program.rewrites.masked import MaskedRow
from normgen.spec.spec import Kind

VARIANCE: tuple[str, ...] = tuple(VarianceMethod)
SOFTMAX: tuple[str, ...] = tuple(SoftmaxMethod)
_LONGEST_WRITTEN_OUT = 500  # operations: formulas that each use another twice would grow without end


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
    ways = {
        "corrected_two_pass": _corrected,
        "sum_of_squares": _sum_of_squares,
        "shifted": _shifted,
        "welford": _welford,
        "guarded": _guarded,
    }
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


def online_results(program: RowProgram) -> RowProgram:
    """Every softmax denominator of a contraction's result computed online: a kernel makes each element once."""

    def denominators(program: RowProgram) -> list[_Pair]:
        kinds, result = value_kinds(program), program.dots[0].kind
        return [pair for pair in _denominators(program) if kind_of(pair.e, kinds) is result]

    return _replace_each(program, denominators, _online) if program.dots else program


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
    """A function that writes an expression out down to loads, scalars and reductions; `constant(e)` is e.

    What sympy would fold on the way keeps its name: Σ(x * x/y) is not Σx where x is 0, if y is another name of x.
    A very long expression goes by the name of the first value that has it.
    """
    written_out: dict[sp.Symbol, sp.Expr] = {}
    long: dict[sp.Expr, sp.Symbol] = {}
    for statement in program.maps:
        with contextlib.suppress(_FoldError):
            value = symbol(statement.name)
            found = _written_out(statement.expr, written_out)
            is_long = found.count_ops() > _LONGEST_WRITTEN_OUT
            written_out[value] = long.setdefault(found, value) if is_long else found

    def inline(expr: sp.Expr) -> sp.Expr:
        try:
            return _written_out(expr, written_out)
        except _FoldError:
            return expr

    return inline


class _FoldError(Exception):
    """sympy made something else of an expression than the expression with other operands."""


def _written_out(expr: sp.Expr, values: Mapping[sp.Symbol, sp.Expr]) -> sp.Expr:
    """`expr` with the values of names. Raises _FoldError."""
    if not expr.args:
        return values.get(expr, expr)
    args = tuple(_written_out(arg, values) for arg in expr.args)
    if isinstance(expr, constant):
        return args[0]
    if args == expr.args:
        return expr
    try:
        found = expr.func(*args)
    except ValueError:  # it would compare what is NaN in every row
        raise _FoldError from None
    if not is_kept(expr, args, found):
        raise _FoldError
    return found


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
    written = {name for r in program.row_reduces for name in r.names}  # a rewrite may leave a pair of its own
    while pairs := [pair for pair in find(program) if pair.second.names[0] in written]:
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
    return free_name(wish, value_kinds(program), {s.tensor for s in program.stores}, {COLS.name})


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


def _corrected(program: RowProgram, pair: _Pair) -> dict[str, tuple[Statement, ...]]:
    """About the sum's mean m, which is off by δ: |δ| <= γ mean|e|, where γ bounds a sum's rounding error (its γ T).

    The residuals are small, and so is what they are off by. With D = mean|e - μ|, to first order
        e_μ   = u |μ| + (γ + u) D              instead of  u |μ| + γ mean|e|
        e_Σ   = γ Σ(e - μ)²                    instead of  γ Σ(e - μ)² + 2 |δ| Σ|e - μ|
    as the term 2 δ Σ(e - m) + cols δ² is what cols·d² takes off. No method that rounds μ to float32 has less than
    u |μ|: both are within the bound of two_pass, for every row.

    The u D is the rounding of each e - m. It is real where |m| is small: all elements of one binade, coarser than m,
    lose the same low bits of m and are off by the same amount, which no mean over them takes away. The sum, whose
    partial sums then have either sign, is off by far less than γ mean|e|. So m stays where 4 cols m² <= Σ(e - m)²,
    that is |m| <= σ/2: the bound of e_μ is there the one on the right. RMS errors in u σ over 400 to 3000 rows of 96,
    1000 and 4097 cols in float32, m then m + d: at |μ| = 0 of normal rows 0.03 to 0.13 and 0.13 to 0.16, of rows of two
    values 0.02 to 0.10 and 0.38 to 0.42; at |μ| = σ/2 0.4 and 0.21 to 0.31; at |μ| = σ 0.8 and 0.4. They cross between
    σ/8 (normal) and σ/3 (two values); up to σ/2 m costs no row more than Welford's steps do, 0.44 to 0.71 there.
    """
    rough, centre = (_fresh(program, f"{pair.root}_rough_{what}") for what in ("sum", "mean"))
    before = (Reduce((rough,), Kind.ROW, SUM, (pair.e,)), Map(centre, Kind.ROW, symbol(rough) / COLS))
    return _about(program, pair, symbol(centre), symbol(rough), before, is_kept_near_0=True)


def _guarded(program: RowProgram, pair: _Pair) -> dict[str, tuple[Statement, ...]]:
    """The sum of squares where cols μ² <= Σe² / 4, which leaves at least three quarters of Σe².

    With γ as in `_corrected`, V = Σ(e - μ)², a = mean|e| and D = mean|e - μ|, the bounds are, to first order and but
    for a few u V on both sides,
        sum of squares  γ Σe² + 2 cols |μ| γ a = γ (V + cols (μ² + 2 |μ| a))
        two_pass        γ V + 2 γ a cols D,    twice of which a schedule may take (REARRANGED)
    The first is within the second if μ² + 2 |μ| a <= V / cols + 4 a D. As |μ| <= a <= |μ| + D, the left side exceeds
    4 a D by 3 μ² at most: that is less than V / cols where cols μ² <= V / 3, which is the condition.

    A sum of squares that overflows leaves inf - inf or inf - 3/4 inf, a NaN: such rows are looked at again.

    The rows that are looked at again have cols μ² > V / 3: all of their means are far enough from 0 to be corrected.
    """
    squares, margin = (_fresh(program, f"{pair.root}_{what}") for what in ("squares", "margin"))
    rough, centre = (_fresh(program, f"{pair.root}_rough_{what}") for what in ("sum", "mean"))
    left = _fresh(program, f"{pair.root}_left")
    before = (
        Reduce((rough,), Kind.ROW, SUM, (pair.e,)),
        Reduce((squares,), Kind.ROW, SUM, (square(pair.e),)),
        Map(centre, Kind.ROW, symbol(rough) / COLS),
        Map(left, Kind.ROW, symbol(squares) - COLS * symbol(centre) ** 2),
        Map(margin, Kind.ROW, symbol(left) - sp.Rational(3, 4) * symbol(squares)),
    )
    return _about(program, pair, symbol(centre), symbol(rough), before, spared=(symbol(margin), symbol(left)))


def _shifted(program: RowProgram, pair: _Pair) -> dict[str, tuple[Statement, ...]]:
    pivot, before = _pivot(program, pair)
    return _about(program, pair, pivot, COLS * pivot, before)


def _about(
    program: RowProgram,
    pair: _Pair,
    pivot: sp.Expr,
    pivots: sp.Expr,
    before: tuple[Statement, ...],
    *,
    spared: tuple[sp.Expr, sp.Expr] | None = None,
    is_kept_near_0: bool = False,
) -> dict[str, tuple[Statement, ...]]:
    """Both sums of the differences from `pivot`, which `before` computes; `pivots` is cols times the pivot.

    `spared`: the margin of the rows that need neither, and what their differences' squares add up to.
    `is_kept_near_0`: the pivot is a mean, which stays as it is where it is below half the standard deviation.
    """
    none = Guard(spared[0], (sp.Integer(0),)) if spared else None
    enough = Guard(spared[0], (spared[1],)) if spared else None
    total, squares, offset = (_fresh(program, f"{pair.root}_shifted_{what}") for what in ("sum", "squares", "mean"))
    shifted_sum, difference = symbol(total), pair.e - pivot
    sums = (
        *before,
        Reduce((total,), Kind.ROW, SUM, (difference,), none),
        Reduce((squares,), Kind.ROW, SUM, (difference**2,), enough),
        Map(offset, Kind.ROW, shifted_sum / COLS),
    )
    left = sp.Max(symbol(squares) - COLS * symbol(offset) ** 2, 0)  # not sum²/cols, which overflows earlier

    def taken(correction: sp.Expr) -> sp.Expr:
        is_far = greater(4 * COLS * pivot**2, symbol(squares))
        return where(is_far, correction, sp.Integer(0)) if is_kept_near_0 else correction

    statements: dict[str, tuple[Statement, ...]] = {
        pair.first.names[0]: (*sums, Map(pair.first.names[0], Kind.ROW, taken(shifted_sum) + pivots)),
        pair.second.names[0]: (Map(pair.second.names[0], Kind.ROW, left),),
    }
    if pair.mean:
        statements[pair.mean] = (Map(pair.mean, Kind.ROW, pivot + taken(symbol(offset))),)
    return statements


def _pivot(program: RowProgram, pair: _Pair) -> tuple[sp.Expr, tuple[Statement, ...]]:
    """The median of `e` in the first, the middle and the last column, and the statements that compute it.

    With κ = (p - μ)² / var, what is summed is 1 + κ times what it should be, and about as much is taken off again: the
    error of the variance is at most γ (1 + κ + 2 √(κ (1 + κ))) of it. One element among n that lies far off has
    κ = n if it is the pivot; a mean of k elements with it has n / k². The median of three has it only if two of
    the three lie as far off: κ is 0.45 on average over normal rows, and above 4 in 0.3 % of them.
    """
    kinds, groups = value_kinds(program), {ld.name: ld.group for ld in program.loads}
    expr, values = pair.e, []
    statements: list[Load | Map] = []
    elem_maps = {symbol(m.name): m.expr for m in program.maps if m.kind.by_col}
    while (used := expr.free_symbols & elem_maps.keys()) and expr.count_ops() <= _LONGEST_WRITTEN_OUT:
        expr = expr.xreplace({s: elem_maps[s] for s in used})
    expr = pair.e if used else expr
    behind = [symbol(name) for name in _used_by(program, expr)]
    loaded = {s.name for e in (expr, *map(elem_maps.get, behind)) for s in e.free_symbols - elem_maps.keys()}
    for column in Column:
        elements = {}
        for name in sorted(n for n in loaded if n != COLS.name and kinds[n].by_col):
            element = _fresh(program, f"{name}_{column}")
            elements[symbol(name)] = symbol(element)
            statements.append(Load(element, Kind.ROW, of=name, column=column, group=groups.get(name, 0)))
        for term in behind:
            statements.append(Map(_fresh(program, f"{term}_{column}"), Kind.ROW, elem_maps[term].xreplace(elements)))
            elements[term] = symbol(statements[-1].name)
        value = expr.xreplace(elements)
        if not value.is_Symbol:
            statements.append(Map(_fresh(program, f"{pair.root}_{column}"), Kind.ROW, value))
            value = symbol(statements[-1].name)
        values.append(value)
    a, b, c = values
    pivot = _fresh(program, f"{pair.root}_pivot")
    return symbol(pivot), (*statements, Map(pivot, Kind.ROW, sp.Max(sp.Min(a, b), sp.Min(sp.Max(a, b), c))))


def _used_by(program: RowProgram, expr: sp.Expr) -> list[str]:
    """The elem maps that an expression is computed from, in order."""
    used = set(map(str, expr.free_symbols))
    found = []
    for statement in reversed([m for m in program.maps if m.kind.by_col]):
        if statement.name in used:
            found.append(statement.name)
            used |= set(map(str, statement.expr.free_symbols))
    return found[::-1]


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


def _online(program: RowProgram, pair: _Pair) -> dict[str, tuple[Statement, ...]]:
    """Both in one state, which of a row of nothing but -inf says (LOWEST, 0) where (-inf, NaN) is right.

    A quotient by the sum is NaN all the same. Where another value shows, the maximum is reduced by itself too: it sets
    the sum right, at the cost of one comparison an element.
    """
    names = (pair.first.names[0], pair.second.names[0])
    if not _shows(program, *names, pair.e):
        return {names[0]: (Reduce(names, Kind.ROW, ONLINE_SOFTMAX, (pair.e,)),), names[1]: ()}
    running = (_fresh(program, f"{names[0]}_running"), _fresh(program, f"{names[1]}_running"))
    largest, reference, summed = map(symbol, (names[0], *running))
    return {
        names[0]: (pair.first, Reduce(running, Kind.ROW, ONLINE_SOFTMAX, (pair.e,))),
        names[1]: (Map(names[1], Kind.ROW, summed * sp.exp(reference - largest)),),
    }


def _shows(program: RowProgram, largest: str, total: str, e: sp.Expr) -> bool:
    """Whether a row value is stored that depends on either, or an element that is not NaN of such a row."""
    inline, both = _inlined(program), {symbol(largest), symbol(total)}
    row = MaskedRow(inline(e), symbol(largest), symbol(total))
    kept: set[sp.Symbol] = set()
    for statement in program.statements:
        names = {symbol(name) for name in defined_names(statement)} - both
        if isinstance(statement, Reduce) and names:
            args = [inline(arg) for arg in statement.args]
            used = row.moved & {one for arg in args for one in arg.free_symbols}
            row.made(names, args)
            kept |= names if used and used <= kept else set()
        elif isinstance(statement, Map) and names <= inline(*names).free_symbols:  # written out it would be another
            row.made(names, [statement.expr.xreplace({s: inline(s) for s in statement.expr.free_symbols})])
            kept |= names
    for store in program.stores:
        value = inline(symbol(store.value))
        if store.kind.is_row and value.free_symbols & both:
            return True
        # A loss is kept by its name, and NaN by the element of its label, which is not known here.
        if not row.is_right(value) and (store.kind.by_col or not value.free_symbols <= kept):
            return True
    return False

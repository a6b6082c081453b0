"""RowPrograms run on one row of sympy expressions: reductions written out, nothing rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import sympy as sp

from normgen.program.ir import COLS, INNER, Load, Map, Reduce, RowProgram, Store
from normgen.program.monoid import LOWEST, Monoid, Recipe, symbol

Row = list[sp.Expr]
Tree = int | tuple["Tree", "Tree"]


def run_row(
    program: RowProgram,
    inputs: dict[str, Row],
    *,
    scalars: tuple[str, ...] = (),
    tidy: Callable[[sp.Expr], sp.Expr] = lambda e: e,
    reduce: Callable[[Monoid, list[Row]], Row] | None = None,
    spared: bool = False,
) -> dict[str, Row]:
    """Every value of the program in every column (row values: the same in each); `tidy` is applied to each value.

    spared: whether this is a row that guards spare their reductions.

    Of a program with a contraction, the axis that it drops stands where columns stand here.
    """
    n = len(next(iter(inputs.values())))
    values = {name: inputs[name] for name in scalars}

    def at(expr: sp.Expr, column: int) -> sp.Expr:
        free = {symbol(name): value[column] for name, value in values.items()}
        return tidy(expr.xreplace({**free, COLS: sp.Integer(n), INNER: sp.Integer(n)}))

    for statement in program.statements:
        match statement:
            case Load(name=name, of=of, column=column):
                values[name] = [inputs[of][column.of(n)]] * n if of else inputs[name]
            case Map(name=name, expr=expr):
                values[name] = [at(expr, c) for c in range(n)]
            case Reduce(names=names, guard=guard) if guard and spared:
                for name, value in zip(names, guard.instead, strict=True):
                    values[name] = [at(value, c) for c in range(n)]
            case Reduce(names=names, monoid=monoid, args=args):
                rows = [[at(arg, c) for arg in args] for c in range(n)]
                for name, result in zip(names, (reduce or chain)(monoid, rows), strict=True):
                    values[name] = [tidy(result)] * n
            case Store():
                pass
    return values


def recipe(recipe: Recipe, known: dict[str, sp.Expr]) -> Row:
    known = {symbol(k): v for k, v in known.items()}
    for name, expr in recipe.lets:
        known[symbol(name)] = expr.xreplace(known)
    return [expr.xreplace(known) for expr in recipe.results]


def lift(monoid: Monoid, args: Row) -> Row:
    return recipe(monoid.lift, dict(zip(monoid.args, args, strict=True)))


def combine(monoid: Monoid, a: Row, b: Row) -> Row:
    known = {f"a_{k}": v for k, v in zip(monoid.state, a, strict=True)}
    return recipe(monoid.combine, known | {f"b_{k}": v for k, v in zip(monoid.state, b, strict=True)})


def identity(monoid: Monoid) -> Row:
    return [e.xreplace({LOWEST: -sp.oo}) for e in monoid.identity]


def chain(monoid: Monoid, rows: list[Row]) -> Row:
    """One thread: the first element lifted, then one step per element."""
    state = lift(monoid, rows[0])
    for args in rows[1:]:
        known = dict(zip(monoid.state, state, strict=True)) | dict(zip(monoid.args, args, strict=True))
        state = recipe(monoid.step, known)
    return state


def vector_chain(monoid: Monoid, vectors: list[list[Row]], state: Row) -> Row:
    """One thread that takes a vector of elements at a time: the reference of all of them first."""
    by_vector = monoid.vector_step
    assert by_vector is not None
    for rows in vectors:
        known = dict(zip(monoid.state, state, strict=True))
        (reference,) = recipe(by_vector.start, known)
        for args in rows:
            seen = {by_vector.reference: reference, **dict(zip(monoid.args, args, strict=True))}
            (reference,) = recipe(by_vector.peek, seen)
        state = recipe(by_vector.move, {**known, by_vector.reference: reference})
        for args in rows:
            known = dict(zip(monoid.state, state, strict=True)) | dict(zip(monoid.args, args, strict=True))
            state = recipe(by_vector.step, known)
    return state


def tree_reduce(tree: Tree) -> Callable[[Monoid, list[Row]], Row]:
    """Lift every element, then combine in the association of `tree`."""

    def of(monoid: Monoid, rows: list[Row], node: Tree) -> Row:
        if isinstance(node, int):
            return lift(monoid, rows[node])
        return combine(monoid, of(monoid, rows, node[0]), of(monoid, rows, node[1]))

    return lambda monoid, rows: of(monoid, rows, tree)


def associations(leaves: Sequence[int]) -> Iterator[Tree]:
    """Every binary tree over the leaves in order."""
    if len(leaves) == 1:
        yield leaves[0]
    for cut in range(1, len(leaves)):
        for left in associations(leaves[:cut]):
            for right in associations(leaves[cut:]):
                yield (left, right)


def symbols(name: str, n: int) -> Row:
    return [symbol(f"{name}{c}") for c in range(n)]

"""What a product of matrices is checked on: families of lines of its two sides.

A line is what one element of the product sums of one side. Lines of the left side are of the families of rows, with
one more; those of the right side, which vary along the product's columns, cycle through families of their own, so that
one call has every pair of families:

normal      standard normal: a part of the sum that is lost shows in the result's own rounding
equal       one value a line: every addition of a chain rounds the same way
halves      the same, negated in the second half: sums grow and cancel
outlier     standard normal, one element 10^3
powers      ±1, 2, 4 or 8: against the left family `whole` every partial sum is exact, and so must the result be
not_finite  standard normal, one NaN, +inf or -inf, by turns
zeros       all 0
huge        as large as its dtype and the sum of squares of a line in float32 allow
tiny        near the smallest normal number of the dtype, and so that ordinary terms of it are normal in float32

whole       whole numbers of a size up to 16

and, where a formula takes the maximum of a line, as a softmax does:

rising      a ramp with noise: the maximum so far moves in every part of the line, by little or by much
falling     the same from its end: the first part has the maximum
late        standard normal, the last element 8 larger: only the last part has the maximum
hidden      -inf, but for a run that begins in any part: what is known so far is nothing
even        one value a line: all weights are equal

Not 1 + 0.2 N as of a norm's weight: of rows of one level a lost tile then hides in what storing as bf16 rounds.

`DRAWN_LEFT` and `DRAWN_RIGHT` are the families whose elements have random signs, and random digits in float32: a
product of one of them with any other obeys the bound of independent roundings. All other pairs drift, or have partial
sums that are larger than their end: see `contraction.bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import F32, DType
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse
from normgen.spec.formula import Call, Expression, Name, nodes, parse_formula
from normgen.spec.functions import ROW_REDUCTIONS
from normgen.spec.spec import Kind, Spec
from normgen.verify.contraction.product import Array

DrawLines = Callable[[tuple[str, ...], int, DType, np.random.Generator], Array]
Draw = Callable[[np.random.Generator, int, int, DType], Array]  # generator, lines, terms of a line, dtype
PRODUCT_PARAMETERS_ARE = ("of a size near 30", "along the result's columns also huge, NaN, inf or -inf")
WHOLE = "whole"
HARMLESS = ("normal", "constant", "zeros")  # left families that leave a sum of all lines a number
DRAWN_LEFT = frozenset(("normal", "one_outlier", "outlier_first", "tiny", "huge", "inf", "nan"))
DRAWN_RIGHT = frozenset(("normal", "outlier", "not_finite", "huge", "tiny"))
_LARGE = ("outlier", "not_finite", "huge")  # of which a saved value, or one of all columns, would be, too
_NAMES = {Kind.INNER: "inner", Kind.ROW: "rows", Kind.COL: "cols"}
_LEFT = {Kind.INNER: Kind.LEFT, Kind.COL: Kind.ELEM, Kind.ROW: Kind.LEFT}
_RIGHT = {Kind.INNER: Kind.MATRIX, Kind.COL: Kind.MATRIX, Kind.ROW: Kind.ELEM}


def _normal(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    return rng.standard_normal((lines, terms))


def _equal(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    return np.repeat(rng.uniform(0.5, 2.0, (lines, 1)) * rng.choice([-1.0, 1.0], (lines, 1)), terms, axis=1)


def _halves(rng: np.random.Generator, lines: int, terms: int, dtype: DType) -> Array:
    return np.asarray(_equal(rng, lines, terms, dtype) * np.where(np.arange(terms) < terms // 2, 1.0, -1.0))


def _outlier(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    found = rng.standard_normal((lines, terms))
    found[np.arange(lines), rng.integers(0, terms, lines)] = 1e3
    return found


def _powers(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    return np.asarray(np.ldexp(rng.choice([-1.0, 1.0], (lines, terms)), rng.integers(0, 4, (lines, terms))))


def _not_finite(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    found = rng.standard_normal((lines, terms))
    found[np.arange(lines), rng.integers(0, terms, lines)] = np.resize([np.nan, np.inf, -np.inf], lines)
    return found


def _zeros(_rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    return np.zeros((lines, terms))


def _signed(rng: np.random.Generator, lines: int, terms: int, low: float, high: float) -> Array:
    return np.asarray(rng.uniform(low, high, (lines, terms)) * rng.choice([-1.0, 1.0], (lines, terms)))


def _huge(rng: np.random.Generator, lines: int, terms: int, dtype: DType) -> Array:
    top = min(dtype.largest, math.sqrt(F32.largest / max(terms, 1)) / 4) / 2
    return _signed(rng, lines, terms, 0.25 * top, top)


def _tiny(rng: np.random.Generator, lines: int, terms: int, dtype: DType) -> Array:
    least = max(dtype.smallest_normal, 2.0**16 * F32.smallest_normal)
    return _signed(rng, lines, terms, 0.5 * least, 4 * least)


RIGHT: dict[str, Draw] = {
    "normal": _normal,
    "equal": _equal,
    "halves": _halves,
    "outlier": _outlier,
    "powers": _powers,
    "not_finite": _not_finite,
    "zeros": _zeros,
    "huge": _huge,
    "tiny": _tiny,
}


def draw_whole(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    return rng.integers(-16, 16, (lines, terms), endpoint=True).astype(np.float64)


def _rising(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    steps = np.resize([0.003, 0.05, 0.5], lines)[:, np.newaxis]
    return np.asarray(steps * (np.arange(terms) + 0.5 * rng.random((lines, terms))))


def _falling(rng: np.random.Generator, lines: int, terms: int, dtype: DType) -> Array:
    return _rising(rng, lines, terms, dtype)[:, ::-1]


def _late(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    found = rng.standard_normal((lines, terms))
    found[:, -1:] = found.max(axis=1, keepdims=True, initial=0.0) + 8
    return found


def _hidden(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    found = rng.standard_normal((lines, terms))
    first = rng.integers(0, terms, (lines, 1)) if terms else np.zeros((lines, 1))
    last = first + 1 + rng.integers(0, max(1, terms // 2), (lines, 1))
    column = np.arange(terms)
    return np.where((column >= first) & (column < last), found, -np.inf)


def _even(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    return np.repeat(rng.standard_normal((lines, 1)), terms, axis=1)


OF_MAXIMUM: dict[str, Draw] = {
    "rising": _rising,
    "falling": _falling,
    "late": _late,
    "hidden": _hidden,
    "even": _even,
}  # of left sides whose lines have a maximum that is taken


def right_families(lines: int, *, first: int = 0, families: Sequence[str] = tuple(RIGHT)) -> tuple[str, ...]:
    """The family of each line of a right side; of another one of the same product they begin at another `first`."""
    return tuple(families[(line + first) % len(families)] for line in range(lines))


def draw_right(of_line: Sequence[str], terms: int, dtype: DType, rng: np.random.Generator) -> Array:
    """[lines, terms] of lines of these families, float64 and not yet rounded to dtype."""
    found = np.empty((len(of_line), terms))
    names = np.array(of_line)
    for name in dict.fromkeys(of_line) if terms else ():
        at = np.flatnonzero(names == name)
        found[at] = RIGHT[name](rng, at.size, terms, dtype)
    return found


def drifts(left: Sequence[str], right: Sequence[str]) -> NDArray[np.bool_]:
    """[left lines, right lines]: where neither line is drawn at random."""
    of_left = np.array([name not in DRAWN_LEFT for name in left], dtype=bool)
    of_right = np.array([name not in DRAWN_RIGHT for name in right], dtype=bool)
    return np.asarray(of_left[:, np.newaxis] & of_right)


def summed(problem: Problem) -> Kind | None:
    """The axis that the problem's product sums; None of a problem without one.

    Forward inner. Backward the gradient of a left side is dy @ w over cols, that of a matrix x @ dy over rows.
    """
    if not problem.inner:
        return None
    if problem.direction is Direction.FORWARD:
        return Kind.INNER
    kinds = {t.kind.of_batch for t in problem.tensors if t.is_written}
    return Kind.ROW if Kind.MATRIX in kinds else Kind.COL if Kind.LEFT in kinds else None


def by_inner(problem: Problem) -> bool:
    """Whether the lines of results that a check looks at are those of inner: of dw. All others have lines of rows."""
    return summed(problem) is Kind.ROW


def reads_saved(problem: Problem) -> bool:
    """Whether a backward problem reads what the forward has written: each element of it depends on all lines."""
    written = {t.name for t in problem.spec.tensors if t.role.is_written}
    return any(t.name in written for t in problem.tensors if not t.is_written)


def joins_columns(problem: Problem) -> bool:
    """Whether a result is made of all columns of a product, as the mean of its squares is.

    One column that is not finite, or far larger than the others, hides all of these.
    """
    return bool(summed(problem)) and problem.direction is Direction.FORWARD and _reduces_products(problem.spec)


@lru_cache(maxsize=256)
def _reduces_products(spec: Spec) -> bool:
    trees = {formula.name: parse_formula(formula.text) for formula in spec.formulas}
    behind: set[str] = set()

    def is_behind(tree: Expression) -> bool:
        return any(
            (isinstance(node, Call) and node.function == "dot") or (isinstance(node, Name) and node.name in behind)
            for node in nodes(tree)
        )

    for _ in trees:  # a formula may stand before those that it reads
        behind |= {name for name, tree in trees.items() if is_behind(tree)}
    calls = (node for tree in trees.values() for node in nodes(tree) if isinstance(node, Call))
    return any(call.function in ROW_REDUCTIONS and is_behind(call.args[0]) for call in calls)


def main_input(problem: Problem) -> str:
    """The tensor whose lines have families of their own: the first left side that is read, else the first input."""
    over = summed(problem)
    lefts = (t.name for t in problem.tensors if over and not t.is_written and t.kind.of_batch is _LEFT[over])
    return next(lefts, problem.spec.inputs[0].name)


def rights(problem: Problem) -> tuple[TensorUse, ...]:
    """The right sides, each of which has families along the result's columns."""
    over = summed(problem)
    return tuple(t for t in problem.tensors if over and not t.is_written and t.kind.of_batch is _RIGHT[over])


def line_axis(tensor: TensorUse, problem: Problem) -> int:
    """The axis of a side, in its order of memory, along which its lines lie: the one that is not summed."""
    over = summed(problem)
    assert over is not None
    return len(tensor.axes) - 1 - tensor.axes[-2:].index(_NAMES[over])


def line_count(problem: Problem) -> int:
    """Lines of the left side, each of which is of a family: rows, or inner of dw, of every batch."""
    return problem.inner * len(runs_of_rows(problem)) if by_inner(problem) else problem.rows


def in_batches(problem: Problem) -> bool:
    """Whether each batch of rows has a product of its own."""
    return any(t.kind is Kind.BATCH_MATRIX for t in problem.tensors)


def runs_of_rows(problem: Problem) -> list[slice]:
    """The rows of each batch that has a product of its own; all rows, where none has."""
    if not in_batches(problem):
        return [slice(0, problem.rows)]
    each = problem.rows_per_batch
    return [slice(batch * each, min((batch + 1) * each, problem.rows)) for batch in range(problem.batches)]


def batch_of_line(problem: Problem, line: int) -> int:
    """The batch of a line: see `line_count`."""
    if not in_batches(problem):
        return 0
    return line // (problem.inner if by_inner(problem) else problem.rows_per_batch)


def drawn_side(
    tensor: TensorUse, problem: Problem, of_line: Sequence[str], rng: np.random.Generator, draw_lines: DrawLines
) -> Array | None:
    """A read tensor that is a side of the product, or would be one forward, in the order of memory; None of all others.

    The first of the left sides has the families of its lines, the right sides theirs, other left sides are standard
    normal. What is no side here, but of the forward, makes products of the size of 1: what was saved of it may be an
    exponent.

    draw_lines  `rows.draw_rows`
    """
    over, sizes = summed(problem), problem.sizes
    if over is None or tensor.dtype.is_integer:
        return None
    sides, kind, runs = (_LEFT[over], _RIGHT[over]), tensor.kind.of_batch, runs_of_rows(problem)
    if kind not in sides:
        if kind in (Kind.LEFT, Kind.MATRIX):
            return np.asarray(rng.standard_normal(problem.shape_of(tensor)) / np.sqrt(sizes.inner))
        return None
    if kind is sides[0]:
        if tensor.name != main_input(problem):
            return rng.standard_normal(problem.shape_of(tensor))
        if not by_inner(problem):
            return in_order(draw_lines(tuple(of_line), sizes.along(_NAMES[over]), tensor.dtype, rng), tensor)
        own = [tuple(of_line[i * sizes.inner : (i + 1) * sizes.inner]) for i in range(len(runs))]
        parts = [draw_lines(o, run.stop - run.start, tensor.dtype, rng).T for o, run in zip(own, runs, strict=True)]
        return in_order(np.concatenate(parts) if parts else np.empty((0, sizes.inner)), tensor)
    if tensor.name not in {t.name for t in rights(problem)}:  # the forward alone reads it
        return rng.standard_normal(problem.shape_of(tensor))
    families = families_of(tensor, problem)
    if over is Kind.ROW:
        parts = [draw_right(families, run.stop - run.start, tensor.dtype, rng).T for run in runs]
        return in_order(np.concatenate(parts) if parts else np.empty((0, sizes.cols)), tensor)
    matrices = max(1, problem.batches) if tensor.kind.by_batch else 1
    drawn = np.stack([draw_right(families, sizes.along(_NAMES[over]), tensor.dtype, rng) for _ in range(matrices)])
    drawn = drawn if over is Kind.COL else np.swapaxes(drawn, -1, -2)
    return in_order(drawn[: problem.batches] if tensor.kind.by_batch else drawn[0], tensor)


def with_extremes(values: Array, tensor: TensorUse, problem: Problem, rng: np.random.Generator) -> Array:
    """A parameter of a product, of which a sixteenth is near 30, one huge, and one infinite or NaN: at least one each.

    Along the axis that is summed nothing is more than 30: the whole result would be infinite, or NaN. Nor is a factor
    of a side, which may leave the sum: an infinity outside is one, and inside meets itself with the other sign. It is
    not 0 either, of which the formula may take the reciprocal.
    """
    count = max(values.size // 16, int(values.size >= 8))
    near, large, odd = rng.permutation(values.size)[: 3 * count].reshape(3, count) if count else [[], [], []]
    values[near] = _signed(rng, 1, count, 27.0, 33.0)
    if tensor.name in factors(problem):
        values[values == 0] = 1.0
    elif tensor.kind is not summed(problem) and not joins_columns(problem):
        values[large] = _huge(rng, 1, count, tensor.dtype)
        values[odd] = np.resize([np.inf, np.nan, -np.inf], count)
    return values


@lru_cache(maxsize=256)
def _in_sides(spec: Spec) -> frozenset[str]:
    """The tensors and values that the sides of a spec's products are made of."""
    trees = {formula.name: parse_formula(formula.text) for formula in spec.formulas}
    dots = (
        node for tree in trees.values() for node in nodes(tree) if isinstance(node, Call) and node.function == "dot"
    )
    found: set[str] = set()
    waiting = {node.name for dot in dots for node in nodes(dot) if isinstance(node, Name)}
    while waiting:
        found |= waiting
        defined = (trees[name] for name in waiting if name in trees)
        waiting = {node.name for tree in defined for node in nodes(tree) if isinstance(node, Name)} - found
    return frozenset(found)


def in_order(values: Array, tensor: TensorUse) -> Array:
    """[rows, inner], [inner, cols] or [rows, cols], of each batch, in the order of memory of the tensor."""
    return values if tensor.axes == tensor.kind.axes else np.swapaxes(values, -1, -2)


def families_of(tensor: TensorUse, problem: Problem) -> tuple[str, ...]:
    """The family of each line of a right side: no two of them are of one family in the same line."""
    others = [t.name for t in rights(problem)]
    lines = problem.inner if summed(problem) is Kind.COL else problem.cols
    is_alone = not (reads_saved(problem) or joins_columns(problem))
    families = [name for name in RIGHT if is_alone or name not in _LARGE]
    return right_families(lines, first=others.index(tensor.name), families=families)


def factors(problem: Problem) -> frozenset[str]:
    """What is, or may be, a factor of a side that leaves the sum: tensors of rows or columns, and values of the row."""
    kept = (Kind.LEFT, Kind.MATRIX, Kind.INNER)
    if problem.direction is Direction.BACKWARD:
        return frozenset(t.name for t in problem.tensors if t.kind not in kept and t.name != main_input(problem))
    kinds = {t.name: t.kind for t in problem.spec.tensors}
    return frozenset(name for name in _in_sides(problem.spec) if kinds.get(name) not in kept)


def faint(problem: Problem, of_line: Sequence[str]) -> NDArray[np.bool_] | None:
    """[left lines, right lines]: where float32 holds no terms, and a factor that has left the sum makes more of them.

    None where no factor leaves a sum.
    """
    if not factors(problem):
        return None
    of_left = np.array([name == "tiny" for name in of_line], dtype=bool)
    of_right = [np.array([name == "tiny" for name in families_of(t, problem)], dtype=bool) for t in rights(problem)]
    return np.asarray(of_left[:, np.newaxis] & np.logical_or.reduce(of_right)) if of_right else None


def level(problem: Problem) -> NDArray[np.bool_] | None:
    """[cols]: where some right side is not drawn at random, of products over inner."""
    if summed(problem) is not Kind.INNER:
        return None
    of_line = [[name not in DRAWN_RIGHT for name in families_of(t, problem)] for t in rights(problem)]
    return np.logical_or.reduce(np.array(of_line)) if of_line else None


def drifting(problem: Problem, of_line: Sequence[str]) -> NDArray[np.bool_] | None:
    """`drifts` for left lines of these families against every right line, in the product's shape; None: no product."""
    over = summed(problem)
    if over is None:
        return None
    found = [drifts(of_line, families_of(t, problem)) for t in rights(problem)]
    if not found:
        return None
    joined: NDArray[np.bool_] = np.logical_or.reduce(found)
    return joined if over is Kind.INNER else joined.T[:, :, np.newaxis] if over is Kind.COL else joined[:, np.newaxis]

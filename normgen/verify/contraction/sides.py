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

whole       whole numbers of a size up to 16

Not 1 + 0.2 N as of a norm's weight: of rows of one level a lost tile then hides in what storing as bf16 rounds.

`DRAWN_LEFT` and `DRAWN_RIGHT` are the families whose elements have random signs, and random digits in float32: a
product of one of them with any other obeys the bound of independent roundings. All other pairs drift, or have partial
sums that are larger than their end: see `contraction.bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import DType
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse
from normgen.spec.spec import Kind
from normgen.verify.contraction.product import Array

DrawLines = Callable[[tuple[str, ...], int, DType, np.random.Generator], Array]
Draw = Callable[[np.random.Generator, int, int, DType], Array]  # generator, lines, terms of a line, dtype
WHOLE = "whole"
HARMLESS = ("normal", "constant", "zeros")  # left families that leave a sum of all lines a number
DRAWN_LEFT = frozenset(("normal", "one_outlier", "outlier_first", "tiny", "huge", "inf", "nan"))
DRAWN_RIGHT = frozenset(("normal", "outlier", "not_finite"))
_LARGE = ("outlier", "not_finite")  # of which a value that the forward has saved would be, too
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


RIGHT: dict[str, Draw] = {
    "normal": _normal,
    "equal": _equal,
    "halves": _halves,
    "outlier": _outlier,
    "powers": _powers,
    "not_finite": _not_finite,
}


def draw_whole(rng: np.random.Generator, lines: int, terms: int, _: DType) -> Array:
    return rng.integers(-16, 16, (lines, terms), endpoint=True).astype(np.float64)


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
    kinds = {t.kind for t in problem.tensors if t.is_written}
    return Kind.ROW if Kind.MATRIX in kinds else Kind.COL if Kind.LEFT in kinds else None


def by_inner(problem: Problem) -> bool:
    """Whether the lines of results that a check looks at are those of inner: of dw. All others have lines of rows."""
    return summed(problem) is Kind.ROW


def reads_saved(problem: Problem) -> bool:
    """Whether a backward problem reads what the forward has written: each element of it depends on all lines."""
    written = {t.name for t in problem.spec.tensors if t.role.is_written}
    return any(t.name in written for t in problem.tensors if not t.is_written)


def line_count(problem: Problem) -> int:
    """Lines of the left side, each of which is of a family: rows, or inner of dw."""
    return problem.inner if by_inner(problem) else problem.rows


def drawn_side(
    tensor: TensorUse, problem: Problem, of_line: Sequence[str], rng: np.random.Generator, draw_lines: DrawLines
) -> Array | None:
    """A read tensor that is a side of the product, or varies along inner, in the order of memory; None of all others.

    The first of the left sides has the families of its lines, the matrices theirs, other left sides are standard
    normal. What is no side here, but of the forward, makes products of the size of 1: what was saved of it may be an
    exponent. A tensor of inner alone is 1 + 0.2 N as any parameter.

    draw_lines  `rows.draw_rows`
    """
    over, sizes = summed(problem), problem.sizes
    if over is None or tensor.dtype.is_integer:
        return None
    sides = (_LEFT[over], _RIGHT[over])
    if tensor.kind not in sides:
        if tensor.kind in (Kind.LEFT, Kind.MATRIX):
            return np.asarray(rng.standard_normal(problem.shape_of(tensor)) / np.sqrt(sizes.inner))
        return 1.0 + 0.2 * rng.standard_normal(sizes.inner) if tensor.kind is Kind.INNER else None
    if tensor.kind is sides[0]:
        others = [t.name for t in problem.tensors if not t.is_written and t.kind is tensor.kind]
        if tensor.name != others[0]:
            return rng.standard_normal(problem.shape_of(tensor))
        lines = draw_lines(tuple(of_line), getattr(sizes, _NAMES[over]), tensor.dtype, rng)
        return in_order(lines.T if by_inner(problem) else lines, tensor)
    lines = draw_right(families_of(tensor, problem), getattr(sizes, _NAMES[over]), tensor.dtype, rng)
    return in_order(lines if over is Kind.COL else lines.T, tensor)


def right_sides(problem: Problem) -> tuple[TensorUse, ...]:
    """The read tensors whose lines are of the families of right sides."""
    over = summed(problem)
    return tuple(t for t in problem.tensors if over is not None and not t.is_written and t.kind is _RIGHT[over])


def in_order(values: Array, tensor: TensorUse) -> Array:
    """[rows, inner], [inner, cols] or [rows, cols] in the order of memory of the tensor."""
    return values if tensor.axes == tensor.kind.axes else values.T


def families_of(tensor: TensorUse, problem: Problem) -> tuple[str, ...]:
    """The family of each line of a right side: no two of them are of one family in the same line."""
    others = [t.name for t in problem.tensors if not t.is_written and t.kind is tensor.kind]
    lines = problem.inner if summed(problem) is Kind.COL else problem.cols
    families = [name for name in RIGHT if name not in _LARGE or not reads_saved(problem)]
    return right_families(lines, first=others.index(tensor.name), families=families)


def drifting(problem: Problem, of_line: Sequence[str]) -> NDArray[np.bool_] | None:
    """`drifts` for left lines of these families against every right line, in the product's shape; None: no product."""
    over = summed(problem)
    if over is None:
        return None
    rights = [t for t in problem.tensors if not t.is_written and t.kind is _RIGHT[over]]
    found = [drifts(of_line, families_of(t, problem)) for t in rights]
    if not found:
        return None
    joined: NDArray[np.bool_] = np.logical_or.reduce(found)
    return joined if over is Kind.INNER else joined.T[:, :, np.newaxis] if over is Kind.COL else joined[:, np.newaxis]

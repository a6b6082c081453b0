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
from normgen.verify.contraction.product import Array

Draw = Callable[[np.random.Generator, int, int, DType], Array]  # generator, lines, terms of a line, dtype
WHOLE = "whole"
DRAWN_LEFT = frozenset(("normal", "one_outlier", "outlier_first", "tiny", "huge", "inf", "nan"))
DRAWN_RIGHT = frozenset(("normal", "outlier", "not_finite"))


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
    for name in dict.fromkeys(of_line):
        at = np.flatnonzero(names == name)
        found[at] = RIGHT[name](rng, at.size, terms, dtype)
    return found


def drifts(left: Sequence[str], right: Sequence[str]) -> NDArray[np.bool_]:
    """[left lines, right lines]: where neither line is drawn at random."""
    of_left = np.array([name not in DRAWN_LEFT for name in left], dtype=bool)
    of_right = np.array([name not in DRAWN_RIGHT for name in right], dtype=bool)
    return np.asarray(of_left[:, np.newaxis] & of_right)

"""Errors of one tensor, gathered block by block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.bench.accuracy.cells import RANK, Error
from normgen.dtypes import DType
from normgen.verify.interpret import Array


def ulps_at(want: Array, dtype: DType) -> Array:
    """The distance between the dtype's numbers at each value: 2^(e - p + 1) of 2^e <= |want|, at least the smallest."""
    _, exponent = np.frexp(np.maximum(np.abs(want), dtype.smallest_normal))
    return np.asarray(np.ldexp(2 * dtype.unit_roundoff, exponent - 1))


class ErrorTally:
    """Sums and maxima over blocks of rows, and the worst of each row of the last call: [2, rows], absolute and in ulps.

    What should not be finite, or lies beyond the dtype's largest number, is in no figure. What is counted and ranked is
    rows, as one mean or one sum may move all elements of a row; where the rows are `summed`, columns.
    """

    def __init__(self, dtype: DType, *, summed: bool = False) -> None:
        self._dtype, self._summed = dtype, summed
        self._squares = self._squares_ulps = self._fourths = self._largest_ulps = 0.0
        self._count = self._not_finite = 0
        self._most = np.zeros(RANK)  # largest errors of as many rows or columns, in ascending order
        self.worst: NDArray[np.float64] = np.zeros((2, 0))

    def begin(self, rows: int) -> None:
        """Another call, of so many rows."""
        self.worst = np.zeros((2, rows))

    def add(self, start: int, got: NDArray[Any], want: Array) -> None:
        """Rows from `start` on: got and want [rows, width]."""
        with np.errstate(all="ignore"):
            error = np.abs(got.astype(np.float64) - want)
            ulps = error / ulps_at(want, self._dtype)
        counted = np.abs(want) <= self._dtype.largest  # a NaN is not
        finite = np.isfinite(error)
        self._not_finite += int((counted & ~finite).sum())
        for figures, worst in zip((error, ulps), self.worst, strict=True):
            figures[~counted] = 0.0
            figures[counted & ~finite] = np.inf
            worst[start : start + len(want)] = figures.max(axis=1)
            figures[~finite] = 0.0
        self._count += int((counted & finite).sum())
        own = error.T if self._summed else error
        squares = np.einsum("rc,rc->r", own, own)
        self._squares += float(squares.sum())
        self._fourths += float(np.einsum("r,r->", squares, squares))
        self._squares_ulps += float(np.einsum("rc,rc->", ulps, ulps))
        most = np.concatenate([self._most, own.max(axis=1, initial=0.0)])
        self._most = np.sort(np.partition(most, -RANK)[-RANK:])
        self._largest_ulps = max(self._largest_ulps, float(ulps.max(initial=0.0)))

    def error(self) -> Error:
        count = max(1, self._count)
        return Error(
            rms=math.sqrt(self._squares / count),
            largest=float(self._most[-1]),
            rms_ulps=math.sqrt(self._squares_ulps / count),
            largest_ulps=self._largest_ulps,
            not_finite=self._not_finite,
            deciding=self._squares**2 / self._fourths if self._fourths else 0.0,
            ranked=float(self._most[0]),
        )

"""Values with bounds on their float32 error, and what every operation does to them: see `error_model`."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import F32
from normgen.verify.interpret import Array

U = F32.unit_roundoff
HALF_SUBNORMAL = F32.smallest_subnormal / 2
OVERFLOW = (2 - U) * 2.0**127  # what is smaller rounds to a finite number
LARGEST_WHOLE = 2.0**23  # the sum of two smaller whole numbers is exact
FLUSHED = 2.0**-126  # what an exponential by the hardware's power of two loses below the smallest normal
REARRANGED = 2.0  # a schedule may trade each rounding for one other: see the module docstring


@dataclass(frozen=True, slots=True)
class Bounded:
    """Values and bounds on their absolute error in float32; `error` None: exact.

    least  no kernel finds less, whatever it rounds: 0 of a square, eps of a variance + eps, exp(-e) of exp(0 ± e)
    is_whole  constants and indices that are whole numbers, whose sums float32 holds exactly
    """

    value: Array
    error: Array | None = None
    least: Array | float = -math.inf
    is_whole: bool = False

    def from_least(self, least: Array | float) -> Bounded:
        return Bounded(self.value, self.error, least, self.is_whole)

    @property
    def near_0(self) -> NDArray[np.bool_] | None:
        """Where a schedule may find the other sign, or 0, for all that the error says; None: nowhere."""
        if self.error is None:
            return None  # an error that is not known is as large as may be
        return np.asarray(~(np.abs(self.value) > REARRANGED * self.error) & ~np.isnan(self.value))

    @property
    def may_be_0(self) -> NDArray[np.bool_] | None:
        """Where it may, for all that is known."""
        near = None if np.all(self.least > 0) else self.near_0
        return None if near is None else near & (np.asarray(self.least) <= 0)


def whole(value: Array) -> Bounded:
    """A constant or an index as it is known exactly; whole numbers say so up to where float32 holds their sums."""
    is_whole = bool(np.all(np.abs(value) < LARGEST_WHOLE)) and bool(np.all(value == np.rint(value)))
    return Bounded(value, least=value, is_whole=is_whole)


def plus(a: Array | None, b: Array | None) -> Array | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def rounded(
    value: Array, error: Array | None, roundings: float | Array = 1.0, *, of: Sequence[Bounded] = ()
) -> Bounded:
    """`value` with `error` and the rounding of the operation that made it, `roundings` times u |value|.

    of  its operands: what is not finite because of a finite one without a bound is no known value
    """
    size = np.asarray(np.abs(value))
    top = size.max(initial=0.0)
    bound = size * (U * roundings)
    bound += HALF_SUBNORMAL
    if not top < F32.largest / 2:  # also when there is a NaN
        bound = np.where(np.isinf(value), 0.0, bound)
        bound = np.where((size + (0.0 if error is None else error) >= OVERFLOW) & ~np.isinf(value), np.inf, bound)
        if error is not None and np.any(lost := ~np.isfinite(value) & _is_lost(of, error)):
            value, error = np.where(lost, 1.0, value), np.where(lost, np.inf, error)
            bound = np.where(lost, 0.0, bound)
    if error is not None:
        if np.any(gap := np.isnan(error) & np.isfinite(value)):  # what has no bound, times 0
            error = np.where(gap, np.inf, error)
        bound = bound + error if bound.shape != np.broadcast_shapes(bound.shape, error.shape) else _into(bound, error)
    return Bounded(value, bound)


def _is_lost(of: Sequence[Bounded], error: Array) -> NDArray[np.bool_]:
    """Where no operand is NaN, and a finite one has no bound, or all are finite and leave none."""
    no, yes = np.asarray(False), np.asarray(True)
    loose = functools.reduce(
        np.logical_or, (np.isfinite(a.value) & np.isinf(a.error) for a in of if a.error is not None), no
    )
    finite = functools.reduce(np.logical_and, (np.isfinite(a.value) for a in of), yes if of else no)
    known = functools.reduce(np.logical_or, (np.isnan(a.value) for a in of), no)
    return np.asarray((loose | (finite & np.isinf(error))) & ~known)


def _into(bound: Array, error: Array) -> Array:
    bound += error
    return bound


def relative(error: Array, value: Array) -> Array:
    """error / value where value can be told from 0, else inf."""
    size = np.abs(value)
    told = (size > F32.smallest_subnormal) & (error < np.inf)
    return np.where(told, error / np.where(told, size, 1.0), np.where(error == 0, 0.0, np.inf))


def unknown(found: Bounded, where: NDArray[np.bool_] | None) -> Bounded:
    """`found` with any value right at some elements: a finite one with the bound inf, see `verify.check`."""
    if where is None or found.error is None or not where.any():
        return found
    value = np.where(where & ~np.isfinite(found.value), 1.0, found.value)
    return Bounded(value, np.where(where, np.inf, found.error))

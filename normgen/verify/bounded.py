"""Values with bounds on their float32 error, and what every operation does to them: see `error_model`.

What is stored, of a dtype of fewer bits than float32, is held to the cell of values that round to it. Rounding is
monotonic: a kernel whose float32 value lies within e of the exact one, v, stores a number whose cell comes within e of
v, and no other. So the check asks of every element how far v lies outside of the cell of what is stored there
(`outside`), and compares that with the bound on the float32 error alone (`allowed`). That is one rounding to nearest,
of half a spacing of the value's own binade: not a whole one, as at the top of a binade u |v| is, and not two roundings.
Where float32 holds v, and every schedule finds it, e is 0: a tie is stored as the even number, the odd one is wrong.

Of a dtype of 8 or 16 bits the ends of all cells stand in a table: the middles between neighbours, and where the
neighbour is the even one of a tie, the next float64 inside. Beyond the largest number lies an infinity, half a spacing
on, or nothing where the dtype saturates. A power of two of f8e8m0 is rounded up to: its cell is (2^(k-1), 2^k].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import F32, DType
from normgen.verify.interpret import Array

U = F32.unit_roundoff
HALF_SUBNORMAL = F32.smallest_subnormal / 2
OVERFLOW = (2 - U) * 2.0**127  # what is smaller rounds to a finite number
LARGEST_WHOLE = 2.0**23  # the sum of two smaller whole numbers is exact
FLUSHED = 2.0**-126  # what an exponential by the hardware's power of two loses below the smallest normal
NOTHING = 2.0**-1022  # of an error bound that is 0: what is off at all is far outside
BEYOND = 2.0**200  # what an infinity counts as where the dtype saturates
REARRANGED = 2.0  # a schedule may trade each rounding for one other: see the module docstring


@dataclass(frozen=True, slots=True)
class Common:
    """The part of an error that all elements of a row have in common: slope times what a row value is off by.

    own    the rest of the error, [rows, cols]
    reach  how far the row value may be off, [rows, 1]
    step   what one rounding of the row value is, [rows, 1]
    slope  [rows, cols], or 1
    """

    own: Array
    reach: Array
    step: Array
    slope: Array | float = 1.0

    def each(self, of: Callable[[NDArray[Any]], NDArray[Any]]) -> Common:
        slope = self.slope if isinstance(self.slope, float) else of(self.slope)  # the model asks whether it is a number
        return Common(own=of(self.own), reach=of(self.reach), step=of(self.step), slope=slope)


@dataclass(frozen=True, slots=True)
class Bounded:
    """Values and bounds on their absolute error in float32; `error` None: exact.

    least  no kernel finds less, whatever it rounds: 0 of a square, eps of a variance + eps, exp(-e) of exp(0 ± e)
    is_whole  constants and indices that are whole numbers, whose sums float32 holds exactly
    exact  where every schedule finds the value itself, whatever `error` says; None: nowhere. `error` goes on counting
           the roundings, as another schedule may have one of them elsewhere: (a b) (c d) is ((a b) c) d
    is_loose  an exact value that a kernel may take apart: a sum, or a quotient by a number, as a part of another
              product; a run-time scalar, as a divisor: by its reciprocal
    common  how `error` is made up, of a difference from a row value, or its square
    """

    value: Array
    error: Array | None = None
    least: Array | float = -math.inf
    is_whole: bool = False
    exact: NDArray[np.bool_] | None = None
    is_loose: bool = False
    common: Common | None = None

    def each(self, of: Callable[[NDArray[Any]], NDArray[Any]]) -> Bounded:
        """The same of other elements, as of some of the rows: `of` of all that is known of each.

        What is left behind would speak of elements that the value no longer has.
        """
        return replace(
            self,
            value=of(self.value),
            error=None if self.error is None else of(self.error),
            least=of(np.asarray(self.least)),
            exact=None if self.exact is None else of(self.exact),
            common=None if self.common is None else self.common.each(of),
        )

    def from_least(self, least: Array | float) -> Bounded:
        return replace(self, least=least)

    def found_exactly(self, exact: NDArray[np.bool_] | None, *, is_loose: bool = False) -> Bounded:
        """The same, where every schedule finds this value."""
        return self if exact is None or self.error is None else replace(self, exact=exact, is_loose=is_loose)

    @property
    def known_error(self) -> Array | None:
        """The error, and 0 where every schedule finds the value, which is not taken apart."""
        if self.error is None or self.exact is None or self.is_loose:
            return self.error
        return np.where(self.exact, 0.0, self.error)

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


def held(value: Array, *of: Bounded) -> NDArray[np.bool_] | None:
    """Where float32 holds the value of a product or a sum of numbers that every schedule finds exactly; None: nowhere.

    A product that float32 holds is exact in any order of its factors: significands of whole parts have no more bits
    than that of the whole.
    """
    if any(a.error is not None and (a.exact is None or a.is_loose) for a in of):
        return None
    return functools.reduce(np.logical_and, (a.exact for a in of if a.exact is not None), in_float32(value))


def nothing_of(a: Bounded, b: Bounded) -> NDArray[np.bool_] | None:
    """Where a is exactly 0 in every schedule and b any finite number: their product is 0; None: nowhere."""
    is_0 = a.value == 0
    if a.error is not None:
        is_0 = is_0 & a.exact if a.exact is not None else np.zeros(1, dtype=bool)
    if b.error is None or not is_0.any():
        return None
    return np.asarray(is_0 & np.isfinite(b.value) & np.isfinite(b.error))


def always_0(a: Bounded) -> NDArray[np.bool_] | None:
    """Where a is exactly 0 in every schedule, and is not taken apart; None: nowhere."""
    if a.error is not None and (a.exact is None or a.is_loose):
        return None
    is_0 = np.asarray(a.value == 0) if a.error is None else np.asarray((a.value == 0) & a.exact)
    return is_0 if is_0.any() else None


def either(*where: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Where any of these says so; None: nowhere."""
    told = [part for part in where if part is not None]
    return functools.reduce(np.logical_or, told) if told else None


def in_float32(value: Array) -> NDArray[np.bool_]:
    """Where a float32 is exactly the value."""
    with np.errstate(over="ignore"):
        return np.asarray(value.astype(np.float32) == value)


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
    exact = None if found.exact is None else found.exact & ~where
    return Bounded(value, np.where(where, np.inf, found.error), exact=exact, is_loose=found.is_loose)


def outside(got: NDArray[Any], want: Array, dtype: DType) -> Array:
    """How far each `want` lies outside of the cell of what is stored there; NaN where either is NaN."""
    if dtype.bytes > 2:
        off = np.abs(got.astype(np.float64) - want)
        return _off_whole(got, off) if dtype.is_integer else off
    codes = got if got.dtype == dtype.numpy else got.astype(dtype.numpy)
    low, high = _cells(dtype)
    at = codes.view(f"u{dtype.bytes}")
    found: Array = np.maximum(low[at] - want, want - high[at])
    np.maximum(found, 0.0, out=found)
    return found


def within_cells(values: Array, dtype: DType) -> Array:
    """Exact values as `outside` wants them: for NaN what stands for it in a format without, for a negative one NaN in a
    format without a sign.
    """
    if dtype.bytes > 2:
        return np.asarray(dtype.within(values))
    if not dtype.saturates:
        return values
    found: Array = np.clip(values, -BEYOND, BEYOND)
    if dtype.for_nan is not None:
        return np.where(np.isnan(found), dtype.for_nan, found)
    return np.where(found < 0, np.nan, found) if dtype.rounds_up else found


def allowed(a: Bounded, dtype: DType) -> Array:
    """The bound of `a` once REARRANGED is applied, before it is stored: how far outside its cell `a` may lie."""
    if a.error is None:
        error = np.where(in_float32(a.value), NOTHING, half_spacing(np.abs(a.value), F32))  # of an i64 not all bits
        return np.where(np.isnan(a.value), _of_nan(dtype), error)
    bound = np.maximum(REARRANGED * a.error, NOTHING)
    if a.exact is not None:
        bound = np.where(a.exact, NOTHING, bound)
    if dtype.rounds_up:  # a negative number is stored as NaN
        low, high = np.maximum(a.value - bound, a.least), a.value + bound
        bound = np.where((low < 0) & (high >= 0), np.inf, bound)
    return np.where(np.isnan(a.value), _of_nan(dtype), np.where(np.isnan(bound), np.inf, bound))


def half_spacing(size: Array, dtype: DType) -> Array:
    """The most that storing a number of this size rounds by: half the distance between its neighbours."""
    if dtype.unit_roundoff == 0:
        return np.full(np.shape(size), dtype.smallest_subnormal / 2)
    known = np.where(np.isfinite(size), size, 0.0)
    binade = np.ldexp(1.0, np.frexp(known)[1] - 1)  # the power of two that is not above it
    found = np.maximum(binade * dtype.unit_roundoff, dtype.smallest_subnormal / 2)
    return np.where(np.isfinite(size), found, 0.0)  # an infinity is stored as it is


def _of_nan(dtype: DType) -> float:
    return np.nan if dtype.for_nan is None else NOTHING


def _off_whole(got: NDArray[Any], off: Array) -> Array:
    """Half a unit less, but of a tie whose even neighbour is the other one."""
    is_tie = (off == 0.5) & (got % 2 == 1)
    return np.where(is_tie, off, np.maximum(off - 0.5, 0.0))


@lru_cache(maxsize=16)  # dtypes of 8 and 16 bits
def _cells(dtype: DType) -> tuple[Array, Array]:
    """The least and the largest float64 that is stored as each code; NaN of a NaN."""
    codes = np.arange(1 << (8 * dtype.bytes // dtype.packed)).astype(f"u{dtype.bytes}")
    if dtype.numpy == np.bool_:
        codes = codes[:2]
    with np.errstate(invalid="ignore"):  # of a NaN that signals
        numbers = codes.view(dtype.numpy).astype(np.float64)
    low, high = np.full(len(codes), np.nan), np.full(len(codes), np.nan)
    told = np.unique(numbers[np.isfinite(numbers)])
    if dtype.rounds_up:
        ends = np.concatenate([[0.0], np.nextafter(told[:-1], np.inf), [np.inf]])
        lows, highs = ends[:-1], np.concatenate([told[:-1], [np.inf]])
    else:
        lows, highs = _to_nearest(told, dtype)
    place = np.searchsorted(told, numbers)
    known = np.isfinite(numbers)
    low[known], high[known] = lows[place[known]], highs[place[known]]
    for sign in () if dtype.saturates else (1.0, -1.0):
        at = numbers == sign * np.inf
        edge = sign * (dtype.largest + _last_step(told) / 2)
        low[at], high[at] = (edge, np.inf) if sign > 0 else (-np.inf, edge)
    if dtype.numpy == np.bool_:  # any other byte is no truth value
        low, high = (np.concatenate([part, np.full(254, np.nan)]) for part in (low, high))
    return low, high


def _to_nearest(told: Array, dtype: DType) -> tuple[Array, Array]:
    """The ends of the cells of ascending numbers; those of an even one are its own."""
    middles = (told[1:] + told[:-1]) / 2
    step = _last_step(told) / 2
    last = np.inf if dtype.saturates else told[-1] + step  # the next number would be even
    first = -np.inf if dtype.saturates else told[0] - step
    ends = np.concatenate([[first], middles, [last]])
    zero = int(np.searchsorted(told, 0.0))
    is_odd = np.abs(np.arange(len(told)) - zero) % 2 == 1  # codes of a sign follow each other from 0 on
    lows = np.where(is_odd, np.nextafter(ends[:-1], np.inf), ends[:-1])
    highs = np.where(is_odd, np.nextafter(ends[1:], -np.inf), ends[1:])
    if dtype.saturates:
        lows[0], highs[-1] = -np.inf, np.inf
    return lows, highs


def _last_step(told: Array) -> float:
    return float(told[-1] - told[-2])

"""How far a float32 product of matrices may be from the exact one: see `error_model` for what a bound is.

With S = Σ l r, T = Σ |l r| and Q = Σ (l r)² over the d terms of an element, and errors e_l, e_r of the sides:

    e(S) = Σ (|l| + e_l) e_r + Σ e_l |r| + min(d u T, λ √d u P),    P = min(T, |S| + 4 √Q)

* A term passes d roundings at most, of itself and of the sums behind it, however the terms are shared out: the first
  bound. The second one is Hoeffding's, as for a row's sum. A side that is drawn at random with both signs keeps partial
  sums below P, 8 deviations of a sum that ends in S, and has no grid that roundings could follow.
* Where both sides lie on a grid or a level neither holds: a right chain of equal terms, or of halves that cancel, goes
  beyond the second bound. These pairs (`sides.drifts`) have d u T.
* A left line of one sign, as the weights of a softmax or squares, has no random signs whatever it was made of: against
  a right line that is not drawn at random either, such as halves that cancel, partial sums go up to T / 2 and come
  back. These pairs (`level`) have d u T, too.
* Tensor cores cut off instead of rounding (arXiv:2512.07004; Fasi et al. 2021, PeerJ CS 330). They take b products
  or more at a step, 8 of 16 bits or 4 of TF32, align them and the sum so far to the largest of all, M, drop from each
  what is below a unit of 2^-24 M, add exactly, and drop of the sum what a float has no bit for: less than 2 units. So
  of a product less than a unit is lost, towards 0: a share of it with the product's sign. With N = Σ sign(l r), the
  shares of mean m add up to m N and a rest of independent ones, by Hoeffding within λ √d / 2; of the sum up to 3 units
  are lost a step:

      e(S) = u P (|N| + λ √d / 2 + 3 s),  s = ⌈d / b⌉ + SHORT_STEPS;  of pairs without random signs u T (d + 3 s)

  What is a whole number of units stays exact: of sums up to 2^24 units nothing lies below one.
* The products of a softmax whose maximum r moves (softmax = online) are within REARRANGED times the same bounds. A term
  that joined at r_j has in the end the weight exp(z - r_j) Π exp(r_i - r_i+1): the arguments' errors, u |argument|, and
  what an exponential is off by for each unit of its argument add up to those of exp(z - r_last), as r only rises. What
  is left of each move are 2 u of its exponential and u of its product, of a partial sum that P bounds. Tiles have 8
  terms or more, so there are M <= d / 8 moves: at worst 3 M u T <= 3/8 d u T beside d u T; by chance
  √(d + 5 M) <= 1.28 √d. A move's errors are those of all sums of the row alike, the divisor's too, and leave the
  quotient but for the terms that join later.
* Where every partial sum is a whole number of units, and T no more than 2^24 of these, float32 holds each of them: the
  product is exact in any order. The unit is 2 to the sum of the least exponents of a bit that is set on either side.
* A term below the smallest normal number loses 2^-150. A factor of a computed side, such as a norm's rstd, may be
  multiplied behind the sum instead, and that loss with it: up to 2^24 times. Terms may be as many times larger without
  their factor, and overflow.
* Of the terms of an infinity or NaN nothing rounds: what IEEE says of them must be found, but where a partial sum of
  the others may overflow, or the factor of an infinity may be 0.
* A computed side whose line has no finite term has an infinite factor, such as the largest of a row: the kernel that
  multiplies by it behind the sum finds an infinity where infinite terms of both signs, or 0 times infinity, are NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import F32
from normgen.spec.spec import Kind
from normgen.verify.bounded import HALF_SUBNORMAL, OVERFLOW, Bounded, U, unknown
from normgen.verify.contraction.product import AXIS, Array, least_of_terms, product

DIGITS = 24  # of a float32
LEFT = 2.0**24  # a factor that leaves a sum: the rstd of a variance of 2^-48, or of an eps of 1e-14
FEW = 16  # terms
SHORT_STEPS = 4  # of fewer products, at the end of k
OF_A_STEP = 3  # units of 2^-24 that a step loses of the sum itself
NO_BIT = 1 << 20  # above every exponent: 0 is a multiple of all units


def contracted(
    a: Bounded,
    b: Bounded,
    over: Kind,
    *,
    depth: float,
    chance: float,
    drifts: NDArray[np.bool_] | None,
    level: NDArray[np.bool_] | None = None,
    at_once: int = 0,
) -> Bounded:
    """Σ a b over an axis with its bound.

    depth   roundings that a term passes at most
    chance  λ √depth
    drifts  where both sides lie on a grid, in the product's shape or broadcast to it; None: nowhere
    level   of a product over inner: the columns of the right side that are not drawn at random
    at_once products that tensor cores, which may have added the terms, take at a step at least; 0: none have
    """
    value = product(a.value, b.value, over)
    if 0 in (a.value.size, b.value.size):  # of no terms, or no elements
        return Bounded(value)
    known = np.isfinite(value)
    left, right = (np.where(np.isfinite(x.value), np.abs(x.value), 0.0) for x in (a, b))
    size = product(left, right, over)
    partial = np.minimum(size, np.where(known, np.abs(value), size) + 4 * np.sqrt(product(left**2, right**2, over)))
    worst = depth * U * size
    if level is not None and drifts is not None and over is Kind.INNER:
        drifts = drifts | (_of_one_sign(a, b) & level)
    likely = chance * U * partial
    if at_once:
        terms = int(a.value.shape[AXIS[over]])
        steps = OF_A_STEP * (-(-terms // at_once) + SHORT_STEPS)
        worst, depth = U * (terms + steps) * size, 2 * depth
        signs = np.abs(product(np.sign(a.value), np.sign(b.value), over))
        likely = np.maximum(likely, U * partial * (np.where(known, signs, 0.0) + chance / 2 + steps))
    rounding = np.minimum(worst, likely)
    rounding = rounding if drifts is None else np.where(drifts, worst, rounding)
    is_bare = a.error is b.error is None
    # A factor of a computed side is multiplied behind the sum, whose terms may be subnormal without it.
    left_out = 1.0 if is_bare else LEFT
    error = rounding + depth * HALF_SUBNORMAL * left_out
    if is_bare:
        error = np.where(_is_whole(a.value, b.value, size, over), 0.0, error)
    error = error + _carried(a, b, left, right, over)
    error = np.where(left_out * size + error >= OVERFLOW, np.inf, np.where(known, error, 0.0))
    found = Bounded(value, error)
    loose = (_loose(a, b, over) | _loose(b, a, over)) & ~_surely_nan(a, b, over)
    loose = loose | _has_infinite_factor(a, b, over) | _has_infinite_factor(b, a, over)
    return unknown(found, loose) if np.any(loose) else found


def _of_one_sign(a: Bounded, b: Bounded) -> NDArray[np.bool_]:
    """[rows, 1]: which lines of the left side, of whichever of the two it is, have one sign."""
    left = (b if a.value.shape[-1] > 1 or b.value.shape[-2] > 1 else a).value[:, :, 0]
    one: NDArray[np.bool_] = np.logical_or(np.all(left >= 0, axis=0), np.all(left <= 0, axis=0))
    return np.asarray(one).reshape(-1, 1)


def _carried(a: Bounded, b: Bounded, left: Array, right: Array, over: Kind) -> Array | float:
    """What the errors of both sides add up to."""
    found: Array | float = 0.0
    if a.error is not None:
        found = product(_finite(a), right, over)
    if b.error is not None:
        found = found + product(left if a.error is None else left + _finite(a), _finite(b), over)
    return found


def _finite(a: Bounded) -> Array:
    assert a.error is not None
    return np.broadcast_to(np.where(np.isfinite(a.error), a.error, 0.0), a.value.shape)


def _loose(a: Bounded, b: Bounded, over: Kind) -> NDArray[np.bool_]:
    """Where a term has no bound: that of an error without one, or an infinity times what may be 0."""
    if a.error is None:
        return np.asarray(False)
    unbounded = np.broadcast_to(~np.isfinite(a.error) & ~np.isnan(a.value), a.value.shape)
    found = _meets(unbounded, np.ones(b.value.shape, bool), over)
    if a.may_be_0 is not None and np.any(infinite := np.isinf(b.value)):
        found |= _meets(np.broadcast_to(a.may_be_0, a.value.shape), infinite, over)
    return found


def _has_infinite_factor(a: Bounded, b: Bounded, over: Kind) -> NDArray[np.bool_]:
    """Where no term of a computed side is finite, and some are infinite: NaN or not, it has no bound."""
    if a.error is None or not np.any(np.isinf(a.value)):
        return np.asarray(False)
    every = np.ones(b.value.shape, bool)
    return _meets(np.isinf(a.value), every, over) & ~_meets(np.isfinite(a.value), every, over)


def _surely_nan(a: Bounded, b: Bounded, over: Kind) -> NDArray[np.bool_]:
    nan_a, nan_b = np.isnan(a.value), np.isnan(b.value)
    return _meets(nan_a, np.ones_like(nan_b), over) | _meets(np.ones_like(nan_a), nan_b, over)


def _meets(a: NDArray[np.bool_], b: NDArray[np.bool_], over: Kind) -> NDArray[np.bool_]:
    """Where some term has both."""
    return product(a.astype(np.float64), b.astype(np.float64), over) > 0


def _is_whole(a: Array, b: Array, size: Array, over: Kind) -> NDArray[np.bool_]:
    """Where every sum of some of the terms is a number of float32. Mostly nowhere, which the first terms show."""
    found = _is_whole_of(_first_terms(a, over), _first_terms(b, over), size, over)
    return _is_whole_of(a, b, size, over) if np.any(found) else found


def _first_terms(side: Array, over: Kind) -> Array:
    return np.moveaxis(np.moveaxis(side, AXIS[over], 0)[:FEW], 0, AXIS[over])


def _is_whole_of(a: Array, b: Array, size: Array, over: Kind) -> NDArray[np.bool_]:
    units = least_of_terms(_least_bit(a), _least_bit(b), over)
    fits = units >= int(np.log2(F32.smallest_subnormal))
    return np.asarray(fits & (size <= np.ldexp(1.0, np.clip(units + DIGITS, -1000, 1000))))


def _least_bit(values: Array) -> NDArray[np.int64]:
    """The exponent of the last bit that is set; of what is no number below all others."""
    known = np.isfinite(values)
    parts, exponents = np.frexp(np.where(known, values, 0.0))
    whole = np.ldexp(parts, 53).astype(np.int64)
    last = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    found = np.where(whole == 0, NO_BIT, exponents.astype(np.int64) - 53 + last)
    return np.where(known, found, -NO_BIT)

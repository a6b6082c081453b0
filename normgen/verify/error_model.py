"""How far a correct float32 kernel may be from the exact result: derived per element, not guessed.

`Float32Error` walks the as-written formula (two-pass variance, two-pass softmax; for a gradient that no one wrote by
hand, the program of `differentiate` before any rewrite) in float64 and carries, beside each value v, a bound e on the
absolute error of its float32 evaluation. With u = 2^-24:

* Inputs are exact: they are already rounded to their stored dtype. Every operation adds u |v| for its own rounding
  and 2^-150 for a result below the smallest normal (subnormals are kept; exponentials may flush theirs and add
  2^-126), to first order plus the product of the errors: e(a b) = (|a| + e_a) e_b + |b| e_a, e(a + b) = e_a + e_b,
  e(f(a)) = |f'(a)| e_a or the exact change of f over [a - e_a, a + e_a] where f is steep.
* Functions round by the CUDA C++ Programming Guide, table of mathematical functions, 1 ulp being at most 2u |v|:
  rsqrtf, tanhf, erff 2 ulp; logf, log1pf, expm1f, sqrt 1 ulp; __expf 2 + floor(|1.173 x|) ulp, which covers expf. A
  division may be a product with a reciprocal: 1 ulp; by a power of two it is exact. A reciprocal may flush its argument
  and its result: nothing is said of the quotient by a subnormal, and one by 2^126 or more may lose 2^-126 of the
  dividend.
* A whole power n is a product of n factors, by repeated squaring or not: a product of a and of b factors has a - 1 and
  b - 1 roundings and adds one, so that n - 1 of them are bounded by n u |v|. The size of every
  factor lies between 1 and the result's. A power -n is the reciprocal of that product, which may overflow where the
  power is subnormal. A power n + 1/2 is the product times sqrtf, a power -n - 1/2 the reciprocal times rsqrtf.
* A sum of n terms, in any order and by any tree. An addition node s rounds by δ_s |S_s| with |δ_s| <= u and S_s the
  partial sum there, so the error is Σ δ_s S_s to first order. Three bounds are known, T being Σ |t_i|:
  - always: Σ u |S_s| <= depth u T, as every term passes `depth` additions at most and Σ_s |S_s| <= depth T;
  - for independent δ_s of mean 0 (the model of Higham and Mary 2019, SIAM J. Sci. Comput. 41, A2815), Hoeffding's
    inequality gives P(|Σ δ_s S_s| > λ u √(Σ S_s²)) <= 2 exp(-λ²/2), and Σ S_s² <= T Σ |S_s| <= depth T². So
    λ √depth u T fails with probability <= 2 exp(-λ²/2) a sum. With λ = 6 that is 3.0e-8: less than 1e-2 for a check
    of 3e5 sums, even if each δ were ±u; for round-to-nearest δ is closer to uniform on ±0.7 u, 15 deviations.
  - the model is wrong where the roundings of a chain agree in sign, as for rows of (nearly) equal terms or terms on a
    coarse grid. While the running sum S keeps its spacing q it is a multiple of q, so adding t rounds by exactly
    r_q(t) = t - q rint(t / q): the chain drifts by the mean of r_q over the terms. `_drifts` measures that mean on
    the data for the last three spacings. Rows where it is 4 deviations from 0 get the sum of the worst cases,
    Σ min(|t_i|, u T), or depth u T (1 - mean|t| / (2 max|t|)) where that is less: a rounding error never exceeds
    the term added, and a partial sum of k terms is at most min(k max|t|, T).
  `depth` is n - 1, or chain - 1 + log2(n / chain) where the caller knows the longest chain of the schedule.
* A sum over rows has no grid or order that a schedule could meet: `make_inputs` draws dy at random. The sum of k of
  its n terms then deviates from k/n of the total S by at most √(Σ t²) / 2 in standard deviation, so partial sums stay
  below |S| + 4 √(Σ t²) (8 deviations), which takes the place of T where it is less. One lost row of 65536 shows.
* Sums over rows of the columns of a group, which are then added up, round independently of each other: by √(Σ r²) of
  the r that chance allows each. Their sum is one of G terms in any order.
* A total adds the elements of all rows in any order: a term passes the additions of its row and rows - 1 more at most.
  Its partial sums are bounded as above where each row's gradient is drawn at random; else by T, a total of inputs or of
  losses having whatever signs its rows have. Rows are drawn one by one, so that few of them round alike.
* Products of matrices, and their pairs of sides that drift: `contraction.bound`.
* Errors of the terms themselves add up, Σ e_i. Maxima are exact: max e_i. The column of a maximum is exact unless
  another element may be the maximum.
* The derivative of |a| or of a maximum of two jumps where a, or their difference, passes 0. Its sign is exact but for
  |a| <= REARRANGED e_a, where a schedule may be on either side: e(sign) is then 2, the whole jump, and the element
  is held to no more than that. An exact tie (e_a = 0) takes the middle of the jump, and the kernel must too.
* Where a schedule may be on either side of 0, |a| <= REARRANGED e_a, nothing can be said after a division by a, its
  logarithm or reciprocal root, nor after its root, unless its parts say better (squares are not negative, a variance +
  eps is positive): a kernel may find NaN there, an infinity or a number. The bound is inf, and the value a finite one.
* An operation whose result may round to an infinity has the bound inf: nothing can be said after it. Rounding to
  nearest does so from half a spacing above the largest float32 on, (2 - u) 2^127: the difference of -largest (what
  masks write) and a small number stays finite.

`REARRANGED` = 2 multiplies the computed error once, at the end: schedules may pull row factors out of sums, divide
by a reciprocal, contract to fma, shift by a pivot or merge Welford states. Each of these trades one rounding of the
as-written formula for at most one other of a value of the same size (the largest error seen over 12060 checks of
correct float32 emulations, 14 seeds, 1 to 16384 cols: 0.68 of the bound for f32 tensors, 0.79 for the mean of f16 x).
What is stored in fewer bits is held to the cell of the number that is there, see `bounded`. Of a sum of squares of
differences from the row's mean, what the mean is off by counts to second order (`_carried`).

The bound is first order: it assumes e_var < var. A row where it does not hold says so by e_rstd >= rstd / 2.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import F32, DType
from normgen.spec.spec import Kind
from normgen.verify.bounded import (
    FLUSHED,
    HALF_SUBNORMAL,
    OVERFLOW,
    REARRANGED,
    Bounded,
    Common,
    U,
    allowed,
    always_0,
    either,
    half_spacing,
    held,
    nothing_of,
    plus,
    relative,
    rounded,
    unknown,
    whole,
)
from normgen.verify.contraction.bound import contracted
from normgen.verify.contraction.product import AXIS, WITH_INNER, in_lines, summed_axis
from normgen.verify.function_errors import either_zero, function
from normgen.verify.interpret import EXTREMA, POSITIONS, Array, Float64, spread_over_row, spread_over_rows

PLAIN_LAMBDA = 2.0  # of rows drawn at random: 5 deviations of roundings that are uniform on ±0.7 u, and then doubled
LAMBDA = 6.0  # 2 exp(-λ²/2) = 3.0e-8: probability that one sum of independent roundings exceeds its bound


@dataclass(frozen=True, slots=True)
class ColumnSum:
    """Part of a sum over rows: Σ t, Σ |t|, Σ t² and Σ e of the rows seen so far.

    Each is [1, cols], of a total [1, 1], of sums over the rows of each batch [batches, cols].

    depth      additions that a term passes within its row
    is_random  whether the signs of the terms are
    """

    total: Array
    size: Array
    square: Array
    carried: Array
    depth: float = 0.0
    is_random: bool = True

    def plus(self, other: ColumnSum) -> ColumnSum:
        return ColumnSum(
            self.total + other.total,
            self.size + other.size,
            self.square + other.square,
            self.carried + other.carried,
            max(self.depth, other.depth),
            self.is_random and other.is_random,
        )

    def scaled(self, times: int) -> ColumnSum:
        """The same rows that many times over."""
        return replace(
            self,
            total=self.total * times,
            size=self.size * times,
            square=self.square * times,
            carried=self.carried * times,
        )

    def bounded(self, rows: int) -> Bounded:
        """The finished sum over `rows` rows; partial sums as for terms whose order is random, where their signs are.

        Atomic additions in global memory take a subnormal number for 0 (PTX, atom.add.f32): one for each row at most.
        """
        sure, chance = self.rounding(rows)
        error = self.carried + np.minimum(sure, chance) + rows * F32.smallest_normal
        may_overflow = (self.size + self.carried >= OVERFLOW) & np.isfinite(self.total)
        return Bounded(self.total, np.where(may_overflow, np.inf, error))

    def rounding(self, rows: int) -> tuple[Array, Array]:
        """The most that the roundings of a sum over `rows` rows add up to, and the most that chance allows."""
        partial = np.minimum(self.size, np.abs(self.total) + 4 * np.sqrt(self.square)) if self.is_random else self.size
        depth = max(rows - 1, 0) + self.depth
        return depth * U * self.size, LAMBDA * math.sqrt(depth) * U * partial


@dataclass(frozen=True, kw_only=True)
class Float32Error:
    """float64 values and float32 error bounds, together.

    chain   longest run of additions, by default of all terms
    drifts  elements of products whose two sides lie on a grid (`contraction.sides.drifts`)
    level   columns of a product whose right side is not drawn at random (`contraction.sides.level`)
    at_once products that tensor cores, which may have added them up, take at a step at least; 0: none have
    is_plain  rows are drawn at random and their statistics are sums, of terms or of differences from their mean: no
              Welford step and no pivot. So are those of a guarded variance
    """

    cols: int
    chain: int | None = None
    is_plain: bool = False
    drifts: NDArray[np.bool_] | None = None
    level: NDArray[np.bool_] | None = None
    at_once: int = 0

    @property
    def depth(self) -> float:
        """Additions a term of a row sum passes at most; the first term of a chain is not added to anything."""
        return self._depth(self.cols)

    def _depth(self, terms: int) -> float:
        chain = terms if self.chain is None else max(1, min(self.chain, terms))
        return chain - 1 + math.log2(terms / chain)

    def constant(self, value: float) -> Bounded:
        array = np.asarray(value, dtype=np.float64)
        found = Bounded(array) if float(np.float32(value)) == value else rounded(array, None)
        return (whole(array) if found.error is None else found).from_least(value)

    def scalar(self, value: float) -> Bounded:
        """A number that is known at run time: a kernel may multiply by its reciprocal."""
        return replace(self.constant(value), is_loose=True)

    def negate(self, a: Bounded) -> Bounded:
        if a.is_whole:
            return _whole_sum(-a.value)
        return Bounded(-a.value, a.error, exact=a.exact, is_loose=a.is_loose)

    def add(self, a: Bounded, b: Bounded) -> Bounded:
        if a.is_whole and b.is_whole:
            return _whole_sum(a.value + b.value)
        return self._added(a.value + b.value, a, b).from_least(a.least + b.least)

    def subtract(self, a: Bounded, b: Bounded) -> Bounded:
        if a.is_whole and b.is_whole:
            return _whole_sum(a.value - b.value)
        found = self._added(a.value - b.value, a, b)
        of_rows = found.value.ndim == b.value.ndim == 2 and b.value.shape == (len(found.value), 1)
        if b.error is None or found.error is None or not of_rows or not found.value.size:
            return found
        reach = np.broadcast_to(b.error, b.value.shape)
        return replace(found, common=Common(own=found.error - reach, reach=reach, step=U * np.abs(b.value)))

    def _added(self, value: Array, a: Bounded, b: Bounded) -> Bounded:
        carried = plus(a.error, b.error)
        found = rounded(value, carried, of=(a, b))
        if (nothing := either(always_0(a), always_0(b))) is not None:  # the sum is the other one, which is not rounded
            assert found.error is not None, "what is rounded has a bound"
            spared = nothing & np.isfinite(value)
            found = replace(found, error=np.where(spared, 0.0 if carried is None else carried, found.error))
        is_shifted = all(x.error is None and not np.any(x.value) for x in (a, b)[1:])  # by a constant 0
        return found.found_exactly(held(value, a, b), is_loose=not is_shifted)

    def multiply(self, a: Bounded, b: Bounded) -> Bounded:
        value, least = a.value * b.value, 0.0 if a is b else _least_of(a.least, b.least, a.least * b.least)
        exact = either(held(value, a, b), nothing_of(a, b), nothing_of(b, a))
        if a.error is None and b.error is None:
            return rounded(value, None).from_least(least).found_exactly(exact)
        if a.error is None:
            a, b = b, a
        assert a.error is not None
        error = np.abs(b.value) if b.error is None else np.abs(b.value) + b.error
        error = error * a.error
        error = error if b.error is None else error + np.abs(a.value) * b.error
        found = rounded(value, error, of=(a, b)).from_least(least).found_exactly(exact)
        if np.all(np.isfinite(value)):
            return found
        return unknown(found, np.broadcast_to(_unsure_infinity(a, b) | _unsure_infinity(b, a), value.shape))

    def divide(self, a: Bounded, b: Bounded) -> Bounded:
        value = a.value / b.value
        error = None if a.error is None else a.error / np.abs(b.value)
        if error is not None and b.error is None and np.any(b.value == 0):  # of any other number it is inf or -inf
            error = np.where(b.value == 0, np.where(np.asarray(a.near_0), np.inf, 0.0), error)
        if b.error is not None:
            off = relative(b.error, b.value)
            grown = np.abs(value) if error is None else np.abs(value) + error
            least = np.maximum(b.value - REARRANGED * b.error, np.nan_to_num(b.least, neginf=0.0))
            far = np.maximum(b.value / np.where(least > 0, least, 1.0) - 1, 1 - 1 / (1 + off))  # below it, above
            far = np.where((least > 0) & (b.error < np.inf), far, np.inf)
            ratio = np.where(off < 0.5, off / np.maximum(1 - off, 0.5), far)
            error = plus(error, grown * ratio)
        size = np.abs(b.value)
        if np.any(flushed := (size >= 1 / FLUSHED) & (size < np.inf)):  # 1 / b is subnormal: 0 to the hardware
            error = plus(error, np.where(flushed, np.abs(a.value) * FLUSHED, 0.0))
        found = rounded(value, error, 0.0 if _is_power_of_two(b) else 2.0, of=(a, b))
        if (unsure := b.may_be_0) is not None:
            found = unknown(found, np.isfinite(a.value) & unsure)
            found = unknown(found, np.broadcast_to(_unsure_infinity(a, b), value.shape))
        share = a.least / b.value if b.error is None and not b.value.ndim else 0.0
        found = _divided_exactly(found, a, b).from_least(_least_of(a.least, b.least, share))
        if np.any(inverted := (size > 0) & (size < FLUSHED)):  # a kernel may multiply by 1 / b, which overflows
            found = unknown(found, np.broadcast_to(np.isfinite(a.value) & inverted, value.shape))
        return unknown(found, np.broadcast_to(np.isinf(a.value) & flushed, value.shape))  # inf x 0 is NaN

    def power(self, base: Bounded, exponent: float) -> Bounded:
        least = 0.0 if exponent % 2 == 0 else _least_of(base.least, 0.0, 0.0)
        found = self._power(base, exponent)
        if found.error is not None and np.any(gap := np.isinf(found.value) & ~(found.error < np.inf)):
            # An infinite power of a base that every schedule finds is exact: inf times an error says nothing. Else, as
            # of every value that is infinite and has no bound, not even its sign is known.
            is_sure = np.asarray(True) if base.error is None else base.error == 0
            found = replace(found, error=np.where(gap, np.where(is_sure, 0.0, np.inf), found.error))
        return found.from_least(least)

    def _power(self, base: Bounded, exponent: float) -> Bounded:
        if exponent == 0:
            return self.constant(1.0)
        if exponent == 1:
            return base
        if exponent == 2:
            return self._square(base)
        if exponent in (0.5, -0.5):
            return self.call("sqrt" if exponent > 0 else "rsqrt", base)
        value = Float64(cols=self.cols).power(base.value, exponent)
        if exponent == int(exponent) and exponent > 0:
            return self._product(base, value, exponent)
        root = math.copysign(0.5, exponent)
        if exponent == int(exponent):
            parts = self.divide(self.constant(1.0), self.power(base, -exponent))
        elif (exponent - root) == int(exponent - root):
            parts = self.multiply(self.power(base, root), self.power(base, exponent - root))
        else:
            return self._powf(base, value, exponent)
        # Where nothing is known, `parts` has a finite value.
        return Bounded(
            value if parts.error is None else np.where(np.isinf(parts.error), parts.value, value), parts.error
        )

    def _product(self, base: Bounded, value: Array, exponent: float) -> Bounded:
        """The base times itself in any order: a product of a and b factors passes a + b - 1 roundings on."""
        if base.error is None:
            return rounded(value, None, exponent)
        size = np.abs(base.value)
        return rounded(value, (size + base.error) ** exponent - size**exponent, exponent, of=(base,))

    def _powf(self, base: Bounded, value: Array, exponent: float) -> Bounded:
        """powf is good to 4 ulp; its exponent is a float32, off by `rounded_off`: d x**p = x**p log(x) dp."""
        rounded_off = abs(float(np.float32(exponent)) - exponent)
        found = self._powf_of(base, value, exponent)
        if not rounded_off:
            return found
        size = np.abs(base.value)
        moved = np.abs(found.value) * rounded_off * np.abs(np.log(np.where((size > 0) & (size < np.inf), size, 1.0)))
        return Bounded(found.value, plus(found.error, moved))

    def _powf_of(self, base: Bounded, value: Array, exponent: float) -> Bounded:
        if base.error is None:
            return rounded(value, None, 8.0)
        off = relative(base.error, base.value)
        grown = np.where(off < 0.5, np.expm1(-abs(exponent) * np.log1p(-np.minimum(off, 0.5))), np.inf)
        near = base.near_0
        unsure = np.asarray(False) if near is None else near & (np.asarray(base.least) < 0)  # NaN of a negative base
        value = np.where(unsure & np.isnan(value), 1.0, value)
        error = np.where(grown < np.inf, np.abs(value) * grown, np.inf)
        return unknown(rounded(value, error, 8.0, of=(base,)), np.broadcast_to(unsure, value.shape))

    def _square(self, a: Bounded) -> Bounded:
        if a.error is None:
            return rounded(a.value * a.value, None)
        error = np.abs(a.value)
        error = (error + error + a.error) * a.error
        error = np.where((a.error == 0) & np.isinf(a.value), 0.0, error)  # of a mask, -inf
        found = rounded(a.value * a.value, error, of=(a,))
        if a.common is None or not isinstance(a.common.slope, float) or found.error is None:
            return found
        slope = 2 * a.value
        own = found.error - np.abs(slope) * a.common.reach  # with the square of all of the error
        return replace(found, common=replace(a.common, own=own, slope=slope))

    def call(self, name: str, *args: Bounded) -> Bounded:
        value = Float64(cols=self.cols).call(name, *(a.value for a in args))
        if name == "divide":
            return self.divide(*args)
        if name == "clamp":
            return self.call("minimum", self.call("maximum", *args[:2]), args[2])
        if name != "sigmoid":
            return function(name, value, args)
        one = Bounded(np.asarray(1.0), least=1.0)
        error = self.divide(one, self.add(one, self.call("exp", self.negate(args[0])))).error
        return Bounded(value, error, least=0.0)

    def named(self, a: Bounded) -> Bounded:
        """What has a name is computed by itself: what is exact there is so in all that follows."""
        return replace(a, is_loose=False) if a.is_loose else a

    def cast(self, a: Bounded, dtype: DType) -> Bounded:
        if dtype is F32:
            return a
        value = np.asarray(dtype.cast(a.value))
        if dtype.is_coarse:  # a step, whose place is known
            error = a.known_error
            moved = None if error is None else np.asarray(dtype.moved(a.value, REARRANGED * error, a.least))
            found = Bounded(value, moved, least=dtype.least if dtype.rounds_up else -math.inf)
            if moved is None:
                return found
            # A code below the normal numbers of float32, as 2^-127 of f8e8m0, is 0 to what flushes them.
            is_known = (moved == 0) & ((value == 0) | (np.abs(value) >= FLUSHED))
            return unknown(found, np.isinf(moved)).found_exactly(is_known if is_known.any() else None)
        size = np.abs(value) if a.error is None else np.abs(value) + a.error
        is_rounded = np.isfinite(value)
        if a.error is None:
            is_rounded &= dtype.stored(value).astype(np.float32) != value
        rounding = np.where(is_rounded, half_spacing(size, dtype), 0.0)
        if dtype.is_integer:
            rounding = rounding + np.where(is_rounded, U * size, 0.0)  # whole numbers are read again in float32
        error = rounding if a.error is None else a.error + rounding
        if dtype.for_nan is not None:  # whatever is stored, NaN too, is one of its numbers
            error = np.fmin(error, dtype.largest - dtype.least)
        found = Bounded(value, error)
        return found if dtype.saturates else unknown(found, np.isfinite(value) & (size > dtype.largest))

    def in_any_order(self, above: list[Bounded], below: list[Bounded], found: Bounded) -> Bounded:
        """As `found`, where another order of the factors may overflow or lose digits below the smallest normal."""
        if found.error is None or len(above) + len(below) < 3:
            return found
        least, most = _partial_products([_size_or_1(a) for a in above], [np.abs(b.value) for b in below])
        if not (np.any(most >= F32.largest) or np.any(least < F32.smallest_normal)):
            return found
        size = np.abs(found.value)
        lost = np.where(size > 0, size * (len(above) + len(below)) * HALF_SUBNORMAL / least, 0.0) + found.error
        error = np.where(least < F32.smallest_normal, lost, found.error)
        return unknown(Bounded(found.value, error, found.least), (most >= F32.largest) & np.isfinite(found.value))

    def reduce(self, name: str, arg: Bounded, group: int = 0) -> Bounded:
        if group:
            return self._over_groups(name, arg, group)
        if arg.value.ndim == WITH_INNER:
            return self._over_inner(name, arg)
        found = self._reduce(name, arg)
        least = np.asarray(arg.least)
        least = least.sum(axis=1, keepdims=True) if least.shape[-1:] == (self.cols,) else self.cols * least
        return found.from_least({"sum": least, "mean": least / self.cols, "absmax": 0.0}.get(name, -math.inf))

    def roll(self, arg: Bounded, share: Fraction, by: int) -> Bounded:
        """Nothing is computed: each element has the bound that it has in its own column."""
        exact = Float64(cols=self.cols)
        least = exact.roll(np.asarray(arg.least), share, by)
        error = None if arg.error is None else exact.roll(arg.error, share, by)
        held = None if arg.exact is None else exact.roll(arg.exact.astype(np.float64), share, by) > 0
        return Bounded(
            exact.roll(arg.value, share, by), error, least, is_whole=arg.is_whole, exact=held, is_loose=arg.is_loose
        )

    def _over_inner(self, name: str, arg: Bounded) -> Bounded:
        shape, least = arg.value.shape, in_lines(np.broadcast_to(arg.least, arg.value.shape))
        error = None if arg.error is None else in_lines(np.broadcast_to(arg.error, shape))
        found = Float32Error(cols=shape[0], chain=self.chain).reduce(name, Bounded(in_lines(arg.value), error, least))

        def back(part: Array | float) -> Array:
            return np.broadcast_to(part, found.value.shape).reshape(shape[1:])

        return Bounded(back(found.value), None if found.error is None else back(found.error), back(found.least))

    def dot(self, a: Bounded, b: Bounded, over: Kind | None = None) -> Bounded:
        """A term is rounded once itself, or in one step with the first addition behind it."""
        over = over or summed_axis(a.value, b.value)
        depth = self._depth(max(a.value.shape[AXIS[over]], 1)) + 1
        chance = LAMBDA * math.sqrt(depth)
        return contracted(
            a, b, over, depth=depth, chance=chance, drifts=self.drifts, level=self.level, at_once=self.at_once
        )

    def _over_groups(self, name: str, arg: Bounded, group: int) -> Bounded:
        """A row of each group; a thread may add up all of it."""
        parts = [spread_over_row(part, self.cols) for part in (arg.value, arg.error) if part is not None]
        shape = np.broadcast_shapes(*(part.shape for part in parts))  # a value of columns may have errors of rows

        def rows(part: Array) -> Array:
            return np.broadcast_to(spread_over_row(part, self.cols), shape).reshape(-1, group)

        def back(part: Array) -> Array:
            return np.repeat(part, group, axis=1).reshape(shape)

        found = Float32Error(cols=group).reduce(
            name, Bounded(rows(arg.value), None if arg.error is None else rows(arg.error))
        )
        return Bounded(back(found.value), None if found.error is None else back(found.error))

    def _reduce(self, name: str, arg: Bounded) -> Bounded:
        t = spread_over_row(arg.value, self.cols)
        e = None if arg.error is None else spread_over_row(arg.error, self.cols)
        if name in POSITIONS:
            return _position(name, t, e)
        if name in EXTREMA:
            of, extremum = EXTREMA[name]
            top = np.asarray(extremum(of(t), axis=1, keepdims=True))
            return either_zero(Bounded(top, None if e is None else e.max(axis=1, keepdims=True)), of(t), axis=1)
        size = np.abs(t).sum(axis=1, keepdims=True)
        error = self._summation(t, size)
        if self.is_plain and e is None:
            error = np.where(self._is_on_grid(t, size), 0.0, error)
        total = t.sum(axis=1, keepdims=True)
        carried = error if e is None else error + self._carried(arg, e, error)
        error = np.where(size + carried >= OVERFLOW, np.inf, carried)
        result = Bounded(total, error)
        if e is not None and np.any(np.isinf(total)):  # beside a value that may be anything
            result = unknown(result, np.isinf(total) & (np.isinf(e) & np.isfinite(t)).any(axis=1, keepdims=True))
        return self.divide(result, self.constant(self.cols)) if name == "mean" else result

    def _carried(self, arg: Bounded, e: Array, rounding: Array) -> Array:
        """What the errors of the terms add up to, [rows, 1]; `rounding`: what the sum itself rounds by.

        Of the squares of differences from the row's mean what these have in common is 2 δ Σ(x - mean), next to nothing,
        and cols δ². Another schedule has other terms of the first order: means of a part of the row, each rounded anew
        (Welford: Σ 2 |x - mean| u |mean|, in a walk at random), or squares about a pivot, one deviation off (the
        rounding of the sum once more). Where cols δ² is more than that rounding, a mean may stand still: there the
        terms count one by one.
        """
        total: Array = e.sum(axis=1, keepdims=True)
        if arg.common is None or isinstance(arg.common.slope, float):
            return total
        common, slope = arg.common, spread_over_row(arg.common.slope, self.cols)
        together = np.abs(slope.sum(axis=1, keepdims=True)) * common.reach
        less = spread_over_row(common.own, self.cols).sum(axis=1, keepdims=True) + together
        if not self.is_plain:
            less += rounding + LAMBDA * np.sqrt(np.square(slope).sum(axis=1, keepdims=True)) * common.step
        return np.where(self.cols * np.square(common.reach) <= rounding, np.minimum(less, total), total)

    def _summation(self, t: Array, size: Array) -> Array:
        """Bound on the rounding of the sum itself: see the module docstring; t: [rows, cols], size: [rows, 1]."""
        depth = self.depth
        if self.is_plain:
            return min(depth, PLAIN_LAMBDA * math.sqrt(depth)) * U * size
        error = min(depth, LAMBDA * math.sqrt(depth)) * U * size
        if depth > LAMBDA * math.sqrt(depth) and len(t):
            rows = np.flatnonzero(self._drifts(t, size))
            if rows.size:
                terms, total = np.abs(t[rows]), size[rows]
                unequal = 1 - total / np.maximum(self.cols * 2 * terms.max(axis=1, keepdims=True), total / self.cols)
                stuck = np.minimum(terms, U * total).sum(axis=1, keepdims=True)
                error[rows] = np.maximum(error[rows], np.minimum(stuck, depth * U * total * unequal))
        return error

    def _is_on_grid(self, t: Array, size: Array) -> NDArray[np.bool_]:
        """[rows, 1]: whether partial sums are exact in any order: multiples of q, and no more than 2^24 of them."""
        with np.errstate(invalid="ignore"):
            grid = np.ldexp(1.0, np.frexp(np.where(np.isfinite(size), size, 0.0))[1] - 24)
            return np.asarray((t == grid * np.rint(t / grid)).all(axis=1, keepdims=True))

    def _drifts(self, t: Array, size: Array) -> NDArray[np.bool_]:
        """[rows]: whether additions to a running sum round the same way on average; t: [rows, cols].

        Every third term is enough: a mean that stays unseen, 4 / √(12 cols / 3), drifts by less than λ √cols.
        """
        sample = t[:, :: 3 if self.cols >= 400 else 1]
        last = np.maximum(size * (self.depth / self.cols), F32.smallest_normal)
        known = np.isfinite(last)
        spacing = np.ldexp(1.0, np.frexp(np.where(known, last, 1.0))[1] - 24)
        scaled = sample / spacing
        limit = 4 / math.sqrt(12 * sample.shape[1])
        found = np.zeros(len(t), dtype=bool)
        for _ in range(3):
            found |= np.abs((scaled - np.rint(scaled)).mean(axis=1)) > limit
            scaled *= 2
        return np.asarray(found & known[:, 0])

    def sum_rows(self, arg: Bounded, row: Bounded | None = None) -> Bounded:
        rows = len(arg.value) if row is None else len(row.value)
        return self.column_part(arg, np.zeros(rows, np.intp), 1).bounded(rows)

    def total_part(self, arg: Bounded, rows: int, *, of_elements: bool, is_random: bool) -> ColumnSum:
        """The elements of so many rows, or their row values, as part of a total."""
        shape = (rows, self.cols if of_elements else 1)
        t = np.broadcast_to(arg.value, shape)
        carried = np.zeros(()) if arg.error is None else np.broadcast_to(arg.error, shape).sum()
        total, size, square, carried = (
            np.reshape(part, (1, 1)) for part in (t.sum(), np.abs(t).sum(), np.square(t).sum(), carried)
        )
        return ColumnSum(total, size, square, carried, self.depth if of_elements else 0.0, is_random)

    def column_part(self, arg: Bounded, batches: NDArray[np.intp], count: int) -> ColumnSum:
        """The rows of `arg`, of these batches, as part of a sum over the rows of each of `count`."""
        t = spread_over_rows(arg.value, len(batches))
        error = spread_over_rows(np.zeros(()) if arg.error is None else arg.error, len(batches))
        in_order = np.argsort(batches, kind="stable")
        met, first = np.unique(batches[in_order], return_index=True)

        def summed(term: Array) -> Array:
            found = np.zeros((count, term.shape[1]))
            found[met] = np.add.reduceat(term[in_order], first, axis=0) if count > 1 else term.sum(axis=0)
            return found

        return ColumnSum(summed(t), summed(np.abs(t)), summed(np.square(t)), summed(error))


def sums_of_groups(part: ColumnSum, rows: int, group: int) -> Bounded:
    """The finished sums over `rows` rows and the columns of each group, [.., cols / group].

    Columns round independently of each other, so that what chance allows grows as the root of their number.
    """
    sure, chance = (_in_lines(bound, group) for bound in part.rounding(rows))
    every = Bounded(_in_lines(part.total, group), _in_lines(part.carried, group) + rows * F32.smallest_normal)
    found = Float32Error(cols=group).reduce("sum", every)
    rounding = np.minimum(
        np.minimum(sure, chance).sum(axis=1, keepdims=True), np.sqrt(np.square(chance).sum(axis=1, keepdims=True))
    )
    may_overflow = _in_lines(part.size + part.carried, group).sum(axis=1, keepdims=True) >= OVERFLOW
    error = plus(found.error, np.where(may_overflow & np.isfinite(found.value), np.inf, rounding))
    assert error is not None
    shape = (len(part.total), part.total.shape[-1] // group)
    return Bounded(found.value.reshape(shape), error.reshape(shape))


def _in_lines(values: Array, group: int) -> Array:
    """A line for each group of columns."""
    return values.reshape(-1, group)


def _whole_sum(value: Array) -> Bounded:
    """A sum of whole numbers, exact; but a 0 has the sign that the order of its terms gives it, -(a - b) or b - a.

    So has the negative of a constant 0, which algebra writes without its sign.
    """
    found = whole(value)
    return replace(found, error=np.zeros(np.shape(value))) if np.any(value == 0) else found


def _position(name: str, t: Array, e: Array | None) -> Bounded:
    """The column of a row's extremum, off by as much as that of any other element that may be the extremum is away.

    A schedule finds t within REARRANGED times its error; of a value without a bound it may find NaN, which goes first.
    """
    found = np.asarray(POSITIONS[name](t, axis=1, keepdims=True), dtype=np.float64)
    if e is None:
        return whole(found)
    loose, t = ~(e < np.inf) & ~np.isnan(t), -t if name == "argmin" else t
    reach = REARRANGED * np.where(loose, 0.0, e)
    surely = np.where(loose, -np.inf, t - reach).max(axis=1, keepdims=True)  # NaN where an element is
    column = np.arange(t.shape[1], dtype=np.float64)[None, :]
    may_be = loose & ~(np.isnan(surely) & (column > found))
    may_be |= np.where(np.isnan(surely), column == found, t + reach >= surely)
    return Bounded(found, np.where(may_be, np.abs(column - found), 0.0).max(axis=1, keepdims=True))


def _unsure_infinity(a: Bounded, b: Bounded) -> NDArray[np.bool_]:
    """Where `a` is infinite, and a finite `b` may be 0 or have the other sign: inf, -inf or NaN."""
    unsure = b.may_be_0
    return np.isinf(a.value) & (False if unsure is None else unsure & np.isfinite(b.value))


def _size_or_1(a: Bounded) -> Array:
    """|a|; a factor 0 loses no digits."""
    return np.where(a.value == 0, 1.0, np.abs(a.value))


def _partial_products(above: list[Array], below: list[Array]) -> tuple[Array, Array]:
    """The least and the largest product that some order of the factors and divisors, which come last, meets."""
    ones = np.ones(())
    least, most = (functools.reduce(np.multiply, (pick(f, 1.0) for f in above), ones) for pick in (np.fmin, np.fmax))
    whole = functools.reduce(np.multiply, above, ones)
    small, large = (functools.reduce(np.multiply, (pick(f, 1.0) for f in below), ones) for pick in (np.fmin, np.fmax))
    return np.fmin(least, whole / large), np.fmax(most, whole / small)


def _least_of(a: Array | float, b: Array | float, least: Array | float) -> Array | float:
    """`least` where neither operand is negative."""
    return np.where((np.asarray(a) >= 0) & (np.asarray(b) >= 0), least, -math.inf)


def _is_power_of_two(a: Bounded) -> bool:
    return a.error is None and a.value.ndim == 0 and abs(float(np.frexp(a.value)[0])) == 0.5


def _divided_exactly(found: Bounded, a: Bounded, b: Bounded) -> Bounded:
    """By a power of two, of which the reciprocal is exact; by a number that every schedule divides by as IEEE does.

    The latter quotient is exact where it has a name: in 448 x / absmax(x) nobody divides by absmax(x) / 448.
    """
    exact = held(found.value, a, b)
    if exact is None or found.error is None:
        return found
    by_constant = b.error is None and b.value.ndim == 0 and not b.is_loose
    return found.found_exactly(exact & (by_constant or np.abs(np.frexp(b.value)[0]) == 0.5), is_loose=by_constant)


def stored(a: Bounded, dtype: DType) -> Array:
    """How far from `a` a right kernel may store it as `dtype`: what `allowed` says, then half a spacing there."""
    if dtype.name == F32.name:
        return allowed(a, dtype)  # a float32 result is not rounded again
    within: Array = np.abs(dtype.within(a.value))
    if dtype.rounds_up:
        moved = np.zeros(()) if a.error is None else dtype.moved(a.value, REARRANGED * a.error, a.least)
        return np.where(np.isnan(moved), np.inf, moved + dtype.smallest_subnormal / 2)
    bound = allowed(a, dtype)
    return bound + half_spacing(np.minimum(within + bound, dtype.largest), dtype)

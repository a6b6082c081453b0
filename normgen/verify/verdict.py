"""What a check found, element by element: for each written tensor, and for one call of a kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import F32, DType
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.verify.bounded import half_spacing, outside
from normgen.verify.interpret import Array
from normgen.verify.varied.values import is_covered

COLUMNS = "columns"  # the family that column outputs are reported under: they sum over all rows


@dataclass(frozen=True, kw_only=True)
class BadElement:
    """One element outside its bound. `row` is -1 for a column output, and -1 - batch where it has a row for each."""

    row: int
    col: int
    family: str
    got: float
    want: float
    bound: float

    @property
    def relative_error(self) -> float:
        """|got - want| / |want|; inf about 0."""
        if self.got == self.want:
            return 0.0
        return abs(self.got - self.want) / abs(self.want) if self.want else math.inf

    def __str__(self) -> str:
        of_batch = f"batch {-1 - self.row}, " if self.row < -1 else ""
        where = f"{of_batch}col {self.col}" if self.row < 0 else f"row {self.row}, col {self.col}"
        return f"{where} ({self.family}): got {self.got:.9g}, want {self.want:.9g} ± {self.bound:.3g}"


@dataclass(frozen=True, kw_only=True)
class TensorVerdict:
    """What was found for one written tensor.

    max_abs_error, max_ratio, worst, bad and first_bad count the rows of the contract's families; `worst` has the
    largest error as a share of its bound; `ratios` gives
    max error / bound for every family, and `outside` those that fail without being part of the contract.
    `unbounded` of the `elements` looked at have no finite bound (an intermediate may overflow float32): any value
    passes there, also NaN or an infinity, which `not_finite` of them are: a right kernel may find inf - inf, or divide
    by 0, and another one need not.
    """

    name: str
    elements: int
    max_abs_error: float
    max_ratio: float
    bad: int
    unbounded: int
    ratios: dict[str, float]
    not_finite: int = 0
    outside: tuple[str, ...] = ()
    worst: BadElement | None = None
    first_bad: BadElement | None = None
    first_outside: BadElement | None = None

    @property
    def ok(self) -> bool:
        return self.bad == 0

    @property
    def bad_families(self) -> tuple[str, ...]:
        """Families of the contract with an element out of bounds."""
        return tuple(sorted(f for f, ratio in self.ratios.items() if ratio > 1 and f not in self.outside))

    def _state(self) -> str:
        """How near the worst element comes to its bound, where, and its error in words one can judge."""
        if not self.ok:
            families = (f"{family} ({self.ratios[family]:.3g} x the bound)" for family in self.bad_families)
            return f"{self.bad} of {self.elements} elements bad, in rows of {', '.join(families)}"
        at = f"ok, {self.max_ratio:.3g} of the bound at most"
        if self.worst is None:
            return at
        relative = self.worst.relative_error
        size = (
            f"relative error {relative:.2g}" if relative < 1 else f"error {abs(self.worst.got - self.worst.want):.2g}"
        )
        where = self.worst.family if self.worst.row < 0 else f"{self.worst.family} rows"
        return f"{at} ({where}: {size} of {self.worst.want:.3g})"

    def summary(self) -> str:
        line = f"{self.name}: {self._state()}"
        if self.first_bad is not None:
            line += f"; first {self.first_bad}"
        if self.outside:
            line += f"; outside the contract: {', '.join(self.outside)} (first {self.first_outside})"
        if self.unbounded:
            line += f"; {self.unbounded} of {self.elements} elements without a finite bound"
            line += f", {self.not_finite} of them NaN or infinite" if self.not_finite else ""
        return line


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of `check`.

    overrun   tensors that were written outside their elements
    padded    tensors whose padding, of rows that are none, is not 0
    call      what sets the call apart from a plain one: "at 1 row"
    families  of rows that were tried
    left_out  families of rows that were not tried: a sum over rows cannot hold them, or its contract leaves them out
    uncounted  families that were tried, but that the spec's accuracy contract leaves out
    seen      variations of scalars and of other inputs on which an element depends: "eps=0.1", "label cols"
    unseen    those on which none does
    """

    problem: Problem
    tensors: tuple[TensorVerdict, ...]
    overrun: tuple[str, ...]
    padded: tuple[str, ...] = ()
    rows_checked: int
    seed: int
    call: str = ""
    families: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not (self.overrun or self.padded) and all(t.ok for t in self.tensors)

    @property
    def max_ratio(self) -> float:
        """The largest error as a share of its bound, over all tensors."""
        return max((t.max_ratio for t in self.tensors), default=0.0)

    def tensor(self, name: str) -> TensorVerdict:
        return next(t for t in self.tensors if t.name == name)

    def summary(self) -> str:
        """One line for the verdict and one for each tensor, wrong ones first."""
        what = f"{self.problem}, {self.rows_checked} rows checked, seed {self.seed}"
        state = " ".join(filter(None, ("ok" if self.ok else "WRONG", self.call)))
        lines = [f"{state}: {what}"]
        lines += [f"  {name}: bytes outside the elements were written" for name in self.overrun]
        lines += [f"  {name}: the padding behind the rows is not 0" for name in self.padded]
        lines += ["  " + t.summary() for t in sorted(self.tensors, key=lambda t: t.ok)]
        return "\n".join(lines)


@dataclass(kw_only=True)
class Tally:
    """Counts for one written tensor, filled block by block."""

    problem: Problem
    tensor: TensorUse
    names: list[str]  # of the families
    codes: NDArray[np.intp]  # [rows]: which family
    max_abs_error: float = 0.0
    bad: int = 0
    elements: int = 0
    unbounded: int = 0
    not_finite: int = 0
    ratios: dict[str, float] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)
    worst: BadElement | None = None
    worst_ratio: float = -1.0
    first_bad: BadElement | None = None
    first_outside: BadElement | None = None

    def add(self, rows: NDArray[np.intp], got: Array, want: Array, bound: Array) -> None:
        """One block: got, want and bound are [len(rows), width] or broadcast to it; rows below 0 are column outputs."""
        got = got.reshape(want.shape)
        off = outside(got, want, self.tensor.dtype)
        got = got.astype(np.float64)
        error, ratio = np.abs(got - want), off / bound
        worst, largest = ratio.max(axis=1), error.max(axis=1)
        odd = np.flatnonzero(~(worst <= 1))  # NaN, inf or out of bounds: look closer
        if odd.size:
            limits = np.broadcast_to(bound, want.shape)[odd]
            judged, error = _judged(got[odd], want[odd], limits, off[odd], error[odd], self.tensor.dtype)
            ratio[odd] = judged
            worst[odd], largest[odd] = judged.max(axis=1), error.max(axis=1)
            for i in np.flatnonzero(worst[odd] > 1).tolist():
                self._note(int(rows[odd[i]]), got[odd[i]], want[odd[i]], limits[i], judged[i])
        self.elements += want.size
        if not bound.max() < np.inf:
            loose = np.isinf(bound) & np.isfinite(want)
            self.unbounded += int(loose.sum())
            self.not_finite += int((loose & ~np.isfinite(got)).sum())
        for family, at in self._by_family(rows):
            self.ratios[family] = max(self.ratios.get(family, 0.0), float(worst[at].max()))
            if self._counts(family):
                self._meet(family, rows, at[int(np.argmax(worst[at]))], worst, got, want, bound, ratio)
                self.max_abs_error = max(self.max_abs_error, float(largest[at].max()))

    def _meet(
        self,
        family: str,
        rows: NDArray[np.intp],
        at: int,
        worst: Array,
        got: Array,
        want: Array,
        bound: Array,
        ratio: Array,
    ) -> None:
        """Keep the element that comes nearest to its bound, or goes farthest beyond: the worst of the row at `at`."""
        if not worst[at] > self.worst_ratio:
            return
        self.worst_ratio = float(worst[at])
        limits = np.broadcast_to(bound, want.shape)[at]
        col = int(np.argmax(np.nan_to_num(ratio[at], nan=0.0, posinf=0.0)))
        self.worst = self._element(int(rows[at]), col, family, got[at], want[at], limits)

    def _by_family(self, rows: NDArray[np.intp]) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """(family, places in `rows`) of every family in this block."""
        if rows[0] < 0:
            yield COLUMNS, np.arange(len(rows))
            return
        codes = self.codes[rows]
        for code in np.unique(codes).tolist():
            yield self.names[code], np.flatnonzero(codes == code)

    def _counts(self, family: str) -> bool:
        return family == COLUMNS or is_covered(self.problem, family)

    def _note(self, row: int, got: Array, want: Array, bound: Array, ratio: Array) -> None:
        family = COLUMNS if row < 0 else self.names[self.codes[row]]
        col = int(np.argmax(ratio > 1))
        element = self._element(row, col, family, got, want, bound)
        if self._counts(family):
            self.bad += int((ratio > 1).sum())
            self.first_bad = self.first_bad or element
        else:
            self.outside.add(family)
            self.first_outside = self.first_outside or element

    def _element(self, row: int, col: int, family: str, got: Array, want: Array, bound: Array) -> BadElement:
        """The element of a row at `col`; its bound has what storing rounds by."""
        dtype = self.tensor.dtype
        rounds = 0.0 if dtype is F32 else float(half_spacing(np.abs(np.asarray(want[col])), dtype))
        return BadElement(
            row=row,
            col=col,
            family=family,
            got=float(got[col]),
            want=float(want[col]),
            bound=float(bound[col]) + rounds,
        )

    def verdict(self) -> TensorVerdict:
        counted = (ratio for family, ratio in self.ratios.items() if self._counts(family))
        return TensorVerdict(
            name=self.tensor.name,
            max_abs_error=self.max_abs_error,
            max_ratio=max(counted, default=0.0),
            bad=self.bad,
            elements=self.elements,
            unbounded=self.unbounded,
            not_finite=self.not_finite,
            ratios=self.ratios,
            outside=tuple(sorted(self.outside)),
            worst=self.worst,
            first_bad=self.first_bad,
            first_outside=self.first_outside,
        )


def _judged(got: Array, want: Array, bound: Array, off: Array, error: Array, dtype: DType) -> tuple[Array, Array]:
    """(off / bound, error) of rows that hold non-finite values or miss.

    off    how far the exact values lie outside of the cells of what is stored
    error  |got - want|

    A NaN must be a NaN and an infinity that infinity. Where the bound is inf, an infinity may be any other value that
    is not finite (Welford turns an inf in a row into NaN), and a finite value or NaN (of what may be negative, stored
    without a sign) anything. Where an exact float32 result lies within its bound of overflow, to either side, both
    that inf and the largest finite value are right; of narrower dtypes, cells say which.
    """
    loose = np.isinf(bound)
    right = (np.isnan(want) & (np.isnan(got) | loose)) | (got == want) | (np.isinf(want) & loose & ~np.isfinite(got))
    right |= np.isfinite(want) & loose
    near = off
    if dtype.bytes > 2:
        reach = np.where(loose, 0.0, bound)
        right |= np.isfinite(want) & np.isinf(got) & (np.sign(got) * want + reach > dtype.largest)
        overflows = (np.abs(want) + reach > dtype.largest) & np.isfinite(got)
        near = np.where(overflows, np.minimum(off, np.abs(got - np.clip(want, dtype.least, dtype.largest))), off)
    ratio = np.where(loose, np.inf, near / bound)
    ratio = np.where(right, 0.0, np.where(np.isfinite(want) & ~np.isnan(ratio), ratio, np.inf))
    return ratio, np.where(right, 0.0, np.where(np.isnan(error), np.inf, error))

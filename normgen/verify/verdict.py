"""What a check found: for each written tensor, and for one call of a kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normgen.problem.problem import Problem


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
        return not self.overrun and all(t.ok for t in self.tensors)

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
        lines += ["  " + t.summary() for t in sorted(self.tensors, key=lambda t: t.ok)]
        return "\n".join(lines)

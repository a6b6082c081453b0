"""What is measured: one cell is an operation, a direction, a dtype, a family of rows and a number of cols.

A file of results has a head as its first line (`trials.head`), then one line a cell:

cell      op, direction, dtype, family, cols, rows
schedule  of our kernel
note      why there is nothing of torch, where there is not
tensors   by name of each written tensor: ours and torch's (or null) {rms, largest, rms_ulps, largest_ulps,
          not_finite, deciding, ranked}, of_bound, held, unbounded (see `Error` and `Compared`)

Whether torch's error is really less, a few rows or columns may decide by chance: one column has nearly all of the error
where one column has an outlier, and the largest of 96 numbers is one number. So "worse" is a test that a cell whose
error is at the limit of what is allowed fails with a probability of one percent:

RMS      Σq over rows or columns of the squared error q of each varies as a chi-squared with ν = 2n degrees of freedom
         does, with the effective number n = (Σq)² / Σq² (Kish 1965, Survey Sampling, 11.7). Half the logarithm of a
         ratio of two such means has the variance (1 / (ν - 1) + 1 / (ν' - 1)) / 2 (Fisher 1924); 2.33 of its deviations
         are allowed, a ratio of 10 at n = 1, of 1.9 at n = 7 and of 1.06 at n = 1000: the quantiles of F to 3 %.
largest  If ours, halved, came from the distribution of torch's, the largest of both would be ours with a probability
         of one half, and the first seven of them with 2^-7: so ours of rank 7 is held against torch's largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from normgen.dtypes import DTYPES
from normgen.errors import UsageError, did_you_mean
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.program.source import problem_for
from normgen.spec.reader import load
from normgen.verify import default_families
from normgen.verify.rows import ALL, NON_FINITE

OPS = ("layernorm", "rmsnorm", "softmax", "log_softmax")
DTYPES_SHOWN = ("f32", "bf16")
COLS = (96, 1000, 4097, 16384, 131072)
ROWS = 10_000
ELEMENTS = 1 << 24  # of a cell at most: a reference and a bound in float64 take about 0.1 us each of a core
CPU_ROWS, CPU_ELEMENTS = 64, 1 << 15  # the executor runs 10^5 to 10^6 elements a second
RMS_PAYS, LARGEST_PAYS = 1.25, 2.0  # times torch's error: beyond, a cell is marked
RANK, DEVIATIONS = 7, 2.33  # beyond chance at one percent: see above
COLUMN_VALUES = 10_000  # of a column output, over as many draws of all rows, as far as the elements of a cell reach


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell: rows of one family only; `draws` times as many, each draw a call of its own."""

    op: str
    direction: str
    dtype: str
    family: str
    cols: int
    rows: int
    draws: int = 1

    def __str__(self) -> str:
        return f"{self.op} {self.direction} {self.dtype} {self.family} {self.rows}x{self.cols}"

    @property
    def label(self) -> str:
        return str(self)

    @property
    def key(self) -> str:
        return f"{self} drawn {self.draws} times"

    @property
    def problem(self) -> Problem:
        return problem_of(self.op, self.direction, self.dtype, (self.rows, self.cols))


@dataclass(frozen=True, kw_only=True)
class Error:
    """Against float64: absolute, and in ulps of the tensor's dtype at the exact value.

    not_finite  elements that are NaN or infinite and should not be: in no figure
    deciding    effective number of rows, or of columns where rows are summed, that the RMS error comes from
    ranked      the largest error of the row or column that is the seventh by it: 0 where there are fewer
    """

    rms: float
    largest: float
    rms_ulps: float
    largest_ulps: float
    not_finite: int = 0
    deciding: float = 0.0
    ranked: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One written tensor of a cell.

    of_bound   ours: the largest error as a share of its element's bound, in the rows that were held against it
    held       how many rows those are: the worst of all rows and some others; of a column output, its one row
    unbounded  share of their elements without a finite bound, where any value passes
    """

    ours: Error
    torch: Error | None
    of_bound: float
    held: int
    unbounded: float

    @property
    def is_over(self) -> bool:
        return not self.of_bound <= 1

    @property
    def is_above(self) -> bool:
        """More than 1.25 x torch's RMS error or 2 x its largest, where that of torch is more than half an ulp."""
        return self._exceeds(RMS_PAYS, self.ours.largest)

    @property
    def is_worse(self) -> bool:
        """The same beyond chance: see the module's docstring."""
        if self.torch is None:
            return False
        deviation = math.sqrt(sum(0.5 / (2 * max(error.deciding, 1.0) - 1) for error in (self.ours, self.torch)))
        is_lost = self.ours.not_finite > self.torch.not_finite
        return is_lost or self._exceeds(RMS_PAYS * math.exp(DEVIATIONS * deviation), self.ours.ranked)

    def _exceeds(self, rms_pays: float, largest: float) -> bool:
        if self.torch is None:
            return False
        rms = self.torch.rms_ulps > 0.5 and self.ours.rms > rms_pays * self.torch.rms
        return rms or (self.torch.largest_ulps > 0.5 and largest > LARGEST_PAYS * self.torch.largest)


@dataclass(frozen=True, kw_only=True)
class MeasuredCell:
    """A cell with what was found."""

    cell: Cell
    schedule: str
    tensors: Mapping[str, Compared] = field(hash=False)
    note: str = ""

    @property
    def key(self) -> str:
        return self.cell.key

    @property
    def marked(self) -> str:
        """Its tensors that are over their bound or worse than torch's."""
        return ", ".join(name for name, found in self.tensors.items() if found.is_over or found.is_worse)


def problem_of(op: str, direction: str, dtype: str, shape: tuple[int, int]) -> Problem:
    return problem_for(load(op), shape=shape, dtype=dtype, direction=direction)


@dataclass(frozen=True, kw_only=True)
class CellsAsked:
    """Which cells: all combinations, with `rows` each as far as `elements` reach."""

    ops: Sequence[str] = OPS
    directions: Sequence[str] = tuple(d.value for d in Direction)
    dtypes: Sequence[str] = DTYPES_SHOWN
    families: Sequence[str] = ()  # empty: all that fit
    cols: Sequence[int] = COLS
    rows: int = ROWS
    elements: int = ELEMENTS

    def __post_init__(self) -> None:
        known = {"ops": OPS, "directions": list(Direction), "dtypes": list(DTYPES)}
        known["families"] = [name for name in ALL if name not in NON_FINITE]
        for what, names in known.items():
            for name in getattr(self, what):
                if name not in names:
                    rule = f"{what} of an accuracy table are {', '.join(names)}"
                    raise UsageError(rule, received=name, hint=did_you_mean(name, names))

    def cells(self) -> Iterator[Cell]:
        """In the order of the table, but for the cols: cells of many elements come first, so that none is left over."""
        found = [cell for cols in self.cols for cell in self._of_cols(cols)]
        yield from sorted(found, key=lambda cell: -cell.draws * cell.rows * cell.cols)

    def _of_cols(self, cols: int) -> Iterator[Cell]:
        rows = max(1, min(self.rows, self.elements // cols))
        for op in self.ops:
            for direction in self.directions:
                for dtype in self.dtypes:
                    problem = problem_of(op, direction, dtype, (rows, cols))
                    wanted = -(-COLUMN_VALUES // cols) if problem.sums_rows else 1
                    draws = max(1, min(wanted, self.elements // (rows * cols)))
                    chosen = [f for f in default_families(problem) if not self.families or f in self.families]
                    for family in (f for f in chosen if f not in NON_FINITE):
                        yield Cell(
                            op=op, direction=direction, dtype=dtype, family=family, cols=cols, rows=rows, draws=draws
                        )

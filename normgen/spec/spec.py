"""A spec: one row-wise operation as a TOML file of tensors, formulas and a search space."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Flag, StrEnum, auto
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from normgen.dtypes import DTYPES


class Sizes(NamedTuple):
    """How long the axes are that values vary along. `batches`: how many there are, or how many heads."""

    rows: int
    cols: int
    inner: int = 1
    batches: int = 1

    def along(self, axis: str, group: int = 0) -> int:
        """Of one of `Kind.axes`; `group` columns make a group."""
        match axis:
            case "groups":
                return self.cols // group
            case "heads":
                return self.batches
        return int(getattr(self, axis))


class Kind(Flag):
    """The axes a value varies along: elem [rows, cols], groups [rows, cols / G], row [rows], col [cols], scalar [].

    Rows may be shared out: a batch is a run of rows of one length, a head every n-th row of n heads. batches
    [batches, cols] and heads [heads, cols] have a value for each of these and each column; `by_batch` asks for either.
    Columns may be shared out, too: group [cols / G], batch_groups and head_groups have a value for each group of G.
    Products that a contraction sums have a third axis: left [rows, inner] and matrix [inner, cols] are its sides,
    batch_matrix [batches, inner, cols] a matrix of each batch, inner [inner] what either is scaled by; product
    [rows, inner, cols] is what they multiply to, and no value is one.
    Joining values unites their axes (what varies by column varies by group as well, what varies by row by batch), a
    reduction drops one. Code asks for an axis, not for a kind's name, so that one more axis is one more member here.
    """

    SCALAR = 0
    ROW = auto()
    COL = auto()
    GROUP = auto()
    BATCH = auto()
    HEAD = auto()
    INNER = auto()
    ELEM = ROW | COL
    GROUPS = ROW | GROUP
    BATCHES = BATCH | COL
    HEADS = HEAD | COL
    BATCH_GROUPS = BATCH | GROUP
    HEAD_GROUPS = HEAD | GROUP
    LEFT = ROW | INNER
    MATRIX = INNER | COL
    BATCH_MATRIX = BATCH | INNER | COL
    PRODUCT = ROW | INNER | COL

    @property
    def by_row(self) -> bool:
        return bool(self._value_ & Kind.ROW._value_)

    @property
    def by_col(self) -> bool:
        return bool(self._value_ & Kind.COL._value_)

    @property
    def by_inner(self) -> bool:
        return bool(self._value_ & Kind.INNER._value_)

    @property
    def own_axis(self) -> Kind:
        """The axis that a reduction of a value of this kind drops: inner of one without columns, else cols."""
        return Kind.INNER if self.by_inner and not self.by_col else Kind.COL

    @property
    def single_axes(self) -> tuple[Kind, ...]:
        """Its axes in their order, each as a kind, of values along rows, inner and cols, be they of each batch."""
        return tuple(_AXES[axis] for axis in self.of_batch.axes)

    @property
    def of_batch(self) -> Kind:
        """Of one batch."""
        return self & ~Kind.BATCH

    @property
    def by_group(self) -> bool:
        """Varies from group to group of columns, and not within one."""
        return bool(self._value_ & Kind.GROUP._value_)

    @property
    def by_batch(self) -> bool:
        """Varies from batch to batch, or from head to head, and not within one."""
        return bool(self._value_ & (Kind.BATCH._value_ | Kind.HEAD._value_))

    @property
    def in_rows(self) -> Kind:
        """What a formula reads of a tensor of this kind: values for each row, or for each column.

        A batch's or a head's number is one of each of its rows, a group's one of each of its columns.
        """
        if self.is_spread:
            return self & ~Kind.GROUP | Kind.COL
        return Kind.ROW if self.by_batch and not self.within_row else self

    @property
    def by_head(self) -> bool:
        """Varies from head to head: row r is of head r % heads."""
        return bool(self._value_ & Kind.HEAD._value_)

    @property
    def within_row(self) -> bool:
        """Not one value for the whole row."""
        return bool(self._value_ & (Kind.COL._value_ | Kind.GROUP._value_ | Kind.INNER._value_))

    @property
    def is_col(self) -> bool:
        """A value for each column, the same in every row."""
        return self is Kind.COL

    @property
    def is_inner(self) -> bool:
        """A value for each of inner, the same in every row and column."""
        return self is Kind.INNER

    @property
    def is_left(self) -> bool:
        """A value for each row and each of inner: a side of a contraction."""
        return self is Kind.LEFT

    @property
    def is_shared_matrix(self) -> bool:
        """A side of a contraction that all rows share."""
        return self is Kind.MATRIX

    @property
    def is_batch_matrix(self) -> bool:
        """A side of a contraction that each batch of rows has one of."""
        return self is Kind.BATCH_MATRIX

    @property
    def is_columns(self) -> bool:
        """A value for each column, the same in every row, or in those of a batch."""
        return self.by_col and not (self.by_row or self.by_inner)

    @property
    def is_groups(self) -> bool:
        """A value for each row and each group of G columns."""
        return self is Kind.GROUPS

    @property
    def is_spread(self) -> bool:
        """A value for each group of G columns, the same in every row, or in those of a batch."""
        return self.by_group and not self.by_row

    @property
    def is_elem(self) -> bool:
        """A value for each row and column."""
        return self is Kind.ELEM

    @property
    def width_axes(self) -> int:
        """How many axes a value for one row, or one batch, has: those behind these."""
        return len(self.axes) - (self.by_row or self.by_batch)

    @property
    def is_matrix(self) -> bool:
        """Values along two axes: a tensor of this kind has a pitch."""
        return self._value_.bit_count() > 1

    @property
    def is_row(self) -> bool:
        """A value for each row, constant along it."""
        return self is Kind.ROW

    @cached_property
    def axes(self) -> tuple[str, ...]:
        first = ("rows",) * self.by_row + ("heads" if self.by_head else "batches",) * self.by_batch
        return first + ("inner",) * self.by_inner + ("cols",) * self.by_col + ("groups",) * self.by_group

    def shape(self, sizes: Sizes, group: int = 0) -> tuple[int, ...]:
        """The sizes of its axes; `group` columns make a group."""
        return tuple(sizes.along(axis, group) for axis in self.axes)

    def within(self, cols: int, group: int = 0) -> tuple[int, ...]:
        """Its size within a row: columns, or groups of so many of them; none of one value for the whole row."""
        return (cols,) if self.by_col else (cols // group,) if self.by_group else ()

    def broadcast_shape(self, sizes: Sizes) -> tuple[int, ...]:
        """[rows, cols] with length 1 for an axis the value does not vary along; inner leads where it varies along it.

        A group's value repeats in its columns, a batch's in its rows.
        """
        rows, cols = self.by_row or self.by_batch, self.by_col or self.by_group
        return (sizes.inner,) * self.by_inner + (sizes.rows if rows else 1, sizes.cols if cols else 1)

    def __str__(self) -> str:
        return str(self.name).lower()


def join(kinds: Iterable[Kind]) -> Kind:
    """The kind of an expression over values of these kinds: row with col gives elem, and so does row with batches."""
    bits = 0  # not `Kind |= Kind`: emitting a kernel joins hundreds of times, and enum's operators take 2 µs each
    for kind in kinds:
        bits |= kind._value_
    bits &= ~(Kind.BATCH._value_ | Kind.HEAD._value_) if bits & Kind.ROW._value_ else -1
    bits &= ~Kind.GROUP._value_ if bits & Kind.COL._value_ else -1
    return Kind(bits)


class Role(StrEnum):
    """What a tensor is to the operation; the role fixes its kind and direction."""

    INPUT = "input"
    PARAMETER = "parameter"
    BATCH_PARAMETER = "batch_parameter"
    HEAD_PARAMETER = "head_parameter"
    ROW_INPUT = "row_input"
    BATCH_INPUT = "batch_input"
    HEAD_INPUT = "head_input"
    SCALAR_INPUT = "scalar_input"
    SCALAR_PARAMETER = "scalar_parameter"
    SEED = "seed"
    OUTPUT = "output"
    ROW_OUTPUT = "row_output"
    SCALAR_OUTPUT = "scalar_output"
    STATISTIC = "statistic"
    GROUP_STATISTIC = "group_statistic"

    @property
    def kind(self) -> Kind:
        return ROLES[self][0]

    @property
    def words(self) -> str:
        """What a tensor of this role is for."""
        return ROLES[self][1]

    @property
    def is_written(self) -> bool:
        return self in (Role.STATISTIC, Role.GROUP_STATISTIC, *OUTPUTS)


ROLES: dict[Role, tuple[Kind, str]] = {
    Role.INPUT: (Kind.ELEM, "read: what is normalised, a residual, a gate"),
    Role.PARAMETER: (
        Kind.COL,
        "read: a weight or a bias per column; with `group` one for each group",
    ),
    Role.BATCH_PARAMETER: (
        Kind.BATCHES,
        "read: a scale or a shift per column, another one in each batch of rows; `group` as above. With "
        "`axes` a matrix of each batch",
    ),
    Role.HEAD_PARAMETER: (
        Kind.HEADS,
        "read: a weight or a bias per column, another one for each head: row r is of head r % heads; `group` as above",
    ),
    Role.ROW_INPUT: (Kind.ROW, "read: a scale or a label per row, a mean that another kernel found"),
    Role.BATCH_INPUT: (Kind.BATCH, "read: a number for each batch of rows; it has no gradient"),
    Role.HEAD_INPUT: (Kind.HEAD, "read: a number for each head, such as a channel's weight; it has no gradient"),
    Role.SCALAR_INPUT: (Kind.SCALAR, "read: one number on the device, such as a static scale; it has no gradient"),
    Role.SCALAR_PARAMETER: (Kind.SCALAR, "read: one learned number on the device; its gradient sums rows and columns"),
    Role.SEED: (Kind.SCALAR, "read: 64 bits on the device, i64, for `random(seed)` alone"),
    Role.OUTPUT: (Kind.ELEM, "written; the backward pass starts from its gradient"),
    Role.ROW_OUTPUT: (Kind.ROW, "written: a loss, a log-sum-exp; the backward pass starts from its gradient"),
    Role.SCALAR_OUTPUT: (
        Kind.SCALAR,
        "written, f32: a total of all rows; the backward pass starts from its gradient",
    ),
    Role.STATISTIC: (Kind.ROW, "written, f32: a mean, a scale; it has no gradient, and may be saved for backward"),
    Role.GROUP_STATISTIC: (Kind.GROUPS, "written: the scales of an output in groups of columns; it has no gradient"),
}
_AXES = {"batches": Kind.BATCH, "rows": Kind.ROW, "inner": Kind.INNER, "cols": Kind.COL}
ORDERS: dict[Role, tuple[tuple[str, ...], ...]] = {
    Role.INPUT: (("rows", "cols"), ("rows", "inner")),
    Role.PARAMETER: (("cols",), ("inner",), ("inner", "cols"), ("cols", "inner")),
    Role.BATCH_PARAMETER: (("batches", "cols"), ("batches", "inner", "cols"), ("batches", "cols", "inner")),
}  # the axes that a tensor may say it has; of another role the role's alone
GROUPED = (Role.PARAMETER, Role.BATCH_PARAMETER, Role.HEAD_PARAMETER)  # may have a value for each group of columns
OUTPUTS = (
    Role.OUTPUT,
    Role.ROW_OUTPUT,
    Role.SCALAR_OUTPUT,
)  # written, and the backward pass starts from their gradients
_LEARNED = {
    Role.SCALAR_INPUT: Role.SCALAR_PARAMETER,
    Role.BATCH_INPUT: Role.BATCH_PARAMETER,
    Role.HEAD_INPUT: Role.HEAD_PARAMETER,
}  # what is given from outside, and the role of what is learned in its place
READ = tuple(role for role in Role if not role.is_written)


ROW_FAMILIES = (
    "normal",
    "large_mean",
    "some_mean",
    "guarded_mean",
    "near_level",
    "sparse_steps",
    "fine_noise",
    "step_noise",
    "large_steps",
    "constant",
    "large_constant",
    "one_outlier",
    "outlier_first",
    "tiny",
    "huge",
    "zeros",
    "mixed_sign",
    "inf",
    "nan",
    "tail",
    "stretch",
    "ties",
    "masked",
)  # the adversarial rows that an accuracy contract may be restricted to


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor of a spec. `absent` is the formula an optional read tensor stands for when not given."""

    name: str
    role: Role
    optional: bool = False
    absent: str | None = None
    dtypes: tuple[str, ...] = ()  # allowed stored dtypes, by name
    follows: str | None = None  # default dtype: that of this tensor
    doc: str = ""
    line: int = 0
    group: int = 0  # columns that share a value of a parameter; 0: each has its own
    axes: tuple[str, ...] = ()  # in the order of memory, one of ORDERS; (): the role's

    @property
    def kind(self) -> Kind:
        """The set of its axes; of a parameter with one value for each group of columns, these stand for the columns."""
        kind = Kind(sum(_AXES[axis]._value_ for axis in self.axes)) if self.axes else self.role.kind
        return kind & ~Kind.COL | Kind.GROUP if self.group else kind

    @property
    def has_gradient(self) -> bool:
        """Whether a tensor has one: labels, masks, columns that were found, numbers from outside have none."""
        return not self.why_no_gradient

    @property
    def why_no_gradient(self) -> str:
        """Why it has none, and what has one in its place; empty where it has one."""
        if self.role in _LEARNED:
            return f"a {self.role} is given; a learned number has the role {_LEARNED[self.role]}"
        is_whole = self.dtypes and all(DTYPES[name].is_integer for name in self.dtypes)
        if self.dtypes and all(DTYPES[name].rounds_up for name in self.dtypes):
            return "powers of two have none"
        is_packed = any(DTYPES[name].packed > 1 for name in self.dtypes)
        return "whole numbers have none" if is_whole else "codes that share a byte have none" if is_packed else ""


Ranges = tuple[tuple[float, float], ...]  # [least, largest] each


@dataclass(frozen=True, kw_only=True)
class Formula:
    """`name = text`, as the author wrote it, in one line."""

    name: str
    text: str
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One operation: what a TOML file under specs/ says, checked.

    `knobs` are searched for forward kernels, `backward_knobs` for backward ones: knob name -> values, as the Schedule
    names them; a knob that is not there takes its default values.
    `scalar_ranges` are the values that its formulas are meant for: a kernel is proven with some of each range.
    `saved` names the statistics and outputs the backward pass reads; the rest it recomputes. A saved statistic has no
    gradient of its own, as mean and rstd have none in torch's native_layer_norm; a backward pass with any other
    statistic present is refused.
    """

    name: str
    summary: str
    paper: str = ""
    tensors: tuple[Tensor, ...]
    scalars: tuple[tuple[str, float], ...] = ()  # name, default
    scalar_ranges: tuple[tuple[str, Ranges], ...] = ()  # of scalars whose spec says which values they may have
    formulas: tuple[Formula, ...]
    knobs: dict[str, tuple[Any, ...]] = field(default_factory=dict, hash=False)
    backward_knobs: dict[str, tuple[Any, ...]] = field(default_factory=dict, hash=False)
    text: str = field(default="", repr=False, compare=False)  # as its author wrote it
    accuracy_rows: tuple[str, ...] = ()  # row families the accuracy contract covers; () = all
    saved: tuple[str, ...] = ()
    group: int = 0  # columns of a group; 0: no formula reduces groups
    rolls: tuple[tuple[Fraction, int], ...] = ()  # by how much formulas roll rows: a share of cols, and columns
    numbers_columns: bool = False  # a formula finds a column, or takes the element of one, by its number in float32
    elem_totals: tuple[str, ...] = ()  # scalar outputs whose total adds the columns too; the others add row values
    file: str = ""
    sha256: str = ""

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    def allows(self, scalar: str, value: float) -> bool:
        """Whether a value lies in the scalar's ranges; without ranges any does."""
        ranges = dict(self.scalar_ranges).get(scalar, ((-math.inf, math.inf),))
        return any(low <= value <= high for low, high in ranges)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Columns of a group, of each size that its formulas and tensors have: cols are whole ones of each."""
        return tuple(dict.fromkeys(group for group in (self.group, *(t.group for t in self.tensors)) if group))

    @cached_property
    def whole_cols(self) -> int:
        """The least number of columns that are whole groups, parts and bytes: cols are a multiple of it."""
        return math.lcm(*self.divisors)

    @cached_property
    def least_cols(self) -> int:
        """So many columns that a problem of any dtypes may have them: whole ones, and more than rows are rolled by."""
        whole = math.lcm(self.whole_cols, *(DTYPES[name].packed for t in self.tensors for name in t.dtypes))
        return (self.too_few_cols // whole + 1) * whole

    @cached_property
    def too_few_cols(self) -> int:
        """Rows of so many columns, or of fewer, have no more than a formula rolls them by; 0: there are none."""
        far = (abs(by) / (1 - share if by > 0 else 1 + share) for share, by in self.rolls)
        return math.floor(max(far, default=Fraction(0)))

    @cached_property
    def divisors(self) -> tuple[int, ...]:
        """What cols are multiples of: groups, the parts that rows are rolled by, and elements that share a byte."""
        parts = math.lcm(*(share.denominator for share, _ in self.rolls))
        found = (*self.groups, *([parts] if parts > 1 else []))
        in_any = (min(DTYPES[name].packed for name in t.dtypes) for t in self.tensors if not t.optional and t.dtypes)
        packed = max(in_any, default=1)
        return found if math.lcm(*found) % packed == 0 else (*found, packed)

    @property
    def has_heads(self) -> bool:
        """Whether its rows are those of heads in turn, not of batches one behind the other: none has both."""
        return any(t.kind.by_head for t in self.tensors)

    @property
    def has_inner(self) -> bool:
        """Whether a tensor varies along inner, whose length a question then says."""
        return any(t.kind.by_inner for t in self.tensors)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role is Role.INPUT)

    @property
    def seeds(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role is Role.SEED)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role is Role.PARAMETER)

    @property
    def statistics(self) -> tuple[Tensor, ...]:
        """What is written and has no gradient: values of rows, then of groups."""
        roles = (Role.STATISTIC, Role.GROUP_STATISTIC)
        return tuple(t for role in roles for t in self.tensors if t.role is role)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What has a gradient: elem outputs, then row outputs, then scalar outputs."""
        return tuple(t for role in OUTPUTS for t in self.tensors if t.role is role)

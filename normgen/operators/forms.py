"""The forms of an operator's calls: which tensors are there, in which dtypes, and the problem that follows."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from normgen.errors import NormgenError, UsageError, did_you_mean
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse, by_role
from normgen.program.source import problem_for
from normgen.python.arguments import is_truth, scalar_of
from normgen.python.remembered import Remembered
from normgen.spec.checks import compared_with_whole, equal_to_whole
from normgen.spec.reader import load, parse
from normgen.spec.spec import READ, Kind, Spec, Tensor


@dataclass(frozen=True, kw_only=True)
class Form:
    """What decides a call's kernel but for its sizes.

    written    what the forward kernel writes
    gradients  backward: the tensors to differentiate by
    dtypes     of the spec's read tensors, in order; "" of one that is absent
    out        the dtype of the outputs that follow an input
    """

    direction: Direction
    written: tuple[str, ...]
    gradients: tuple[str, ...] = ()
    dtypes: tuple[str, ...]
    out: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Uses:
    """The problem of a form: what it reads and stores, in the order of a handle's arguments and results.

    rows   places of the row inputs in `reads`
    trace  makes a function of the framework's arrays of a problem
    """

    form: Form
    problem: Problem
    reads: tuple[TensorUse, ...]
    writes: tuple[TensorUse, ...]
    rows: tuple[int, ...]
    dtypes: Mapping[str, str]
    present: tuple[str, ...]
    trace: Callable[[Problem], Any]

    @functools.cached_property
    def function(self) -> Any:
        """The formulas, on the framework's arrays."""
        return self.trace(self.problem)

    def is_one_call(self, apart: Iterable[TensorUse]) -> bool:
        """Whether a call on the rows of all examples is what calls on the rows of each are.

        apart  what is another one in each example; heads are counted by the last sizes of rows, so they cannot be
        """
        of_rows = all(use.kind.by_row or (use.kind.by_batch and not use.kind.by_head) for use in apart)
        return of_rows and all(use.kind.by_row for use in self.writes) and not self.function.numbers_rows


class Writes(NamedTuple):
    """What an operator's forward kernels write.

    outputs  those that are not optional or are returned
    plainly  without a backward pass to come: besides, the statistics that are not optional or are returned
    saving   with one: besides, the statistics that it reads
    saved    of these, what the backward pass may read
    """

    outputs: tuple[str, ...]
    plainly: tuple[str, ...]
    saving: tuple[str, ...]
    saved: tuple[str, ...]


def writes_of(spec: Spec, returns: Collection[str]) -> Writes:
    outputs = tuple(t.name for t in spec.outputs if not t.optional or t.name in returns)
    kept = tuple(t.name for t in spec.statistics if not t.optional or t.name in returns)
    saving = (*outputs, *(t.name for t in spec.statistics if t.name in (*kept, *spec.saved)))
    saved = tuple(name for name in saving if name in (*outputs, *spec.saved))
    return Writes(outputs, (*outputs, *kept), saving, saved)


def is_of_rows(kind: Kind) -> bool:
    """Whether a tensor has a run of values for each row."""
    return kind.by_row and kind.within_row


_PARTS = {("rows", "cols"): slice(None), ("rows",): slice(-1), ("cols",): slice(-1, None)}


@dataclass(frozen=True)
class Lengths:
    """What the tensors of a call measure: the sizes before the last of those of rows, cols, and inner; 0 without.

    batches  how many matrices of each batch there are; 0: none
    """

    leading: tuple[Any, ...]
    cols: Any
    inner: Any = 0
    batches: Any = 0

    def shape(self, axes: Sequence[str]) -> tuple[Any, ...]:
        """That of a tensor with these axes."""
        sizes = {"rows": self.leading, "batches": (self.batches,), "inner": (self.inner,), "cols": (self.cols,)}
        return tuple(size for axis in axes for size in sizes[axis])


def lengths_of(tensors: Iterable[tuple[Sequence[str], Sequence[Any]]]) -> Lengths:
    """Of (axes, shape) of each tensor of a spec with inner. Raises ValueError where two do not agree.

    Batches are the first sizes of rows, as one size or as they are: [6, inner, cols] and [2, 3, inner, cols] of rows
    [2, 3, 5].
    """
    found: dict[str, Any] = {}
    for axes, shape in tensors:
        named: dict[str, Any] = {}
        last = axes
        if axes[:1] in (("rows",), ("batches",)):
            last, count = axes[1:], len(shape) - len(axes) + 1
            first, shape = tuple(shape[:count]), shape[count:]
            named[axes[0]] = first if axes[0] == "rows" else math.prod(first)
        named |= dict(zip(last, shape, strict=True))
        for axis, size in named.items():
            if found.setdefault(axis, size) != size:
                raise ValueError(f"{axis} is {found[axis]} and {size}")
    rows, batches = found.get("rows", ()), found.get("batches", 0)
    if "batches" in found and "rows" in found and not _are_first(batches, rows):
        raise ValueError(f"batches are {batches}, rows {rows}")
    return Lengths(rows, found.get("cols", 0), found.get("inner", 0), batches)


def _are_first(batches: Any, rows: Sequence[Any]) -> bool:
    """Whether so many batches are the first sizes of rows; of rows of one size, whether they divide it."""
    if len(rows) == 1:
        return bool(batches and rows[0] % batches == 0)
    return any(batches == count for count in itertools.accumulate(rows, operator.mul, initial=1))


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a call keeps for its backward pass, and where that pass finds what it takes and returns.

    uses            of the backward pass
    saved           names of what is saved
    places          of what is saved, among the call's tensors and then its results
    statistics      likewise, of the results that have no gradient
    reads           what the pass reads, in the order of its problem: places among cotangents and then what is saved
    returned        for each tensor of the call: which stored gradient is its own, None of one that is not asked for
    shaped          places of the tensors that a call may give in another shape than their gradient is stored in: [1] of
                    one number, [batches, 1, cols]
    """

    uses: Uses
    saved: tuple[str, ...]
    places: Sequence[int]
    statistics: Sequence[int]
    reads: Sequence[int]
    returned: Sequence[int | None]
    shaped: Sequence[int]


class Forms:
    """The calls of one spec, as far as no framework is asked.

    reads   the tensors it reads, in the order of a handle's arguments
    labels  the scalars that labels are held to
    known   all that is remembered of calls: what follows from a form, and what computes a call
    trace   as in `Uses`, the framework's
    """

    trace: ClassVar[Any]

    def __init__(self, spec: Spec) -> None:
        self.spec, self.known = spec, Remembered()
        self._compared, self.labels = compared_with_whole(spec), equal_to_whole(spec)
        self.reads: tuple[Tensor, ...] = tuple(by_role(spec.tensors, *READ))
        self._first = next(i for i, t in enumerate(self.reads) if is_of_rows(t.kind))
        # The part of the first input's shape that each other tensor has, where no axis but rows and cols is there.
        sized = () if spec.has_inner else ((i, _PARTS.get(t.kind.axes)) for i, t in enumerate(self.reads))
        self._sized = tuple((i, part) for i, part in sized if part is not None)[1:]
        self._grouped = tuple((i, t) for i, t in enumerate(self.reads) if t.group)

    def problem(self, form: Form) -> Uses:
        """What a form's call reads and stores."""
        return self.known.once(self._problem, form)

    def scalars(self, values: Iterable[Any]) -> tuple[float, ...]:
        """The numbers of a call's scalars. Raises UsageError for what is none, as a handle does."""
        names = (name for name, _ in self.spec.scalars)
        return tuple(
            scalar_of(name, value, is_whole=name in self._compared, is_label=name in self.labels)
            for name, value in zip(names, values, strict=True)
        )

    def kept(self, writes: Writes, form: Form) -> Kept:
        """What a call keeps for a backward pass of this form.

        Raises UsageError where the spec has no gradient by one of the tensors.
        """
        try:
            uses = self.problem(form)
        except NormgenError as error:
            rule = f"'{self.spec.name}' has no gradient by {', '.join(form.gradients)}: {error.rule}"
            raise UsageError(rule, received=error.received, hint=self.without_gradient) from error
        takes = tuple(t.name for t in self.reads)
        names = tuple(use.name for use in uses.reads if not use.of)
        known, there = (*takes, *writes.saving), (*(f"d{output}" for output in writes.outputs), *names)
        stored = {name: i for i, use in enumerate(uses.writes) for name in (use.of, *use.also)}
        asked = [name if name in form.gradients else "" for name in takes]
        return Kept(
            uses=uses,
            saved=names,
            places=[known.index(name) for name in names],
            statistics=[known.index(name) for name in writes.saving if name not in writes.outputs],
            reads=[there.index(use.name) for use in uses.reads],
            returned=[stored.get(name) for name in asked],
            shaped=[
                place
                for place, (tensor, name) in enumerate(zip(self.reads, asked, strict=True))
                if (tensor.kind is Kind.SCALAR or tensor.kind.by_batch) and name in stored
            ],
        )

    without_gradient = "do not differentiate by them"  # how a framework says so

    def checked(self, tensors: Sequence[Any]) -> Any:
        """The first tensor of rows. UsageError unless the others have its shape, or their part of it.

        Tensors of batches are checked here for their columns only where these are groups.
        """
        first = tensors[self._first]
        shape = first.shape
        if self.spec.has_inner:
            self.lengths(tensors)
            return first
        if not shape or not shape[-1]:
            raise UsageError(f"'{self.spec.name}' takes [.., cols], cols >= 1", received=str(tuple(shape)))
        for size in self.spec.divisors:
            if shape[-1] % size:
                what = f"whole groups of {size}" if size in self.spec.groups else f"a multiple of {size}"
                rule = f"'{self.spec.name}' takes cols that are {what}"
                raise UsageError(rule, received=str(tuple(shape)))
        if (few := self.spec.too_few_cols) and shape[-1] <= few:
            raise UsageError(f"'{self.spec.name}' rolls rows of more than {few} cols", received=str(tuple(shape)))
        for i, part in self._sized:
            tensor = tensors[i]
            if tensor is not None and tensor.shape != shape[part]:
                rule = f"'{self.reads[i].name}' of '{self.spec.name}' has the shape {tuple(shape[part])} here"
                raise UsageError(rule, received=str(tuple(tensor.shape)), hint="expand or reshape it first")
        for i, read in self._grouped:
            tensor, groups = tensors[i], shape[-1] // read.group
            if tensor is None or (tensor.shape[-1:] == (groups,) and (read.kind.by_batch or tensor.ndim == 1)):
                continue
            named = ", ".join((*read.kind.axes[:-1], str(groups)))
            rule = f"'{read.name}' of '{self.spec.name}' is [{named}] here, a value for each {read.group} columns"
            raise UsageError(rule, received=str(tuple(tensor.shape)))
        return first

    def lengths(self, tensors: Sequence[Any]) -> Lengths:
        """Of a spec with inner. Raises UsageError unless all tensors agree, and cols and inner are 1 at least."""
        there = [(t.axes or t.kind.axes, v) for t, v in zip(self.reads, tensors, strict=True) if v is not None]
        try:
            found = lengths_of((axes, tuple(v.shape)) for axes, v in there)
        except ValueError:
            found = Lengths((), 0, 0)
        if not (found.cols and found.inner):
            takes = ", ".join(f"{t.name} [{', '.join(t.axes or t.kind.axes)}]" for t in self.reads)
            named = zip(self.reads, tensors, strict=True)
            shapes = ", ".join(f"{t.name} {tuple(v.shape)}" for t, v in named if v is not None)
            rule = f"'{self.spec.name}' takes {takes}, whose sizes agree, cols and inner at least 1"
            rule += ", batches the first sizes of rows" if any(t.kind.by_batch for t in self.reads) else ""
            raise UsageError(rule.replace("rows,", "..,"), received=shapes)
        return found

    def _problem(self, form: Form) -> Uses:
        """The problem of a form. Its cols are the least: what is asked of it here holds for all."""
        optional = [t.name for t in self.spec.tensors if t.optional]
        there = {t.name for t, dtype in zip(self.reads, form.dtypes, strict=True) if dtype} | set(form.written)
        without = [name for name in optional if name not in there]
        named = {t.name: dtype for t, dtype in zip(self.reads, form.dtypes, strict=True) if dtype}
        named |= {t.name: form.out for t in self.spec.outputs if t.follows}
        problem = problem_for(
            self.spec,
            shape=(1, self.spec.least_cols),
            inner=1 if self.spec.has_inner else None,
            dtype=named[self.spec.inputs[0].name],
            dtypes=named,
            direction=form.direction.value,
            without=without,
            gradients=form.gradients or None,
        )
        order = [name for name, memory in problem.results.items() if name == memory]
        reads = tuple(t for t in problem.tensors if not t.is_written)
        return Uses(
            form=form,
            problem=problem,
            reads=reads,
            writes=tuple(problem.tensor(name) for name in order),
            rows=tuple(i for i, use in enumerate(reads) if use.is_row_input),
            dtypes=named,
            present=tuple(name for name in optional if name in there),
            trace=self.trace,
        )


def axis_number(axis: object, count: int, *, name: str, what: str, hint: str) -> int:
    """One of `count` axes as an int: any whole number is taken, of numpy too. Raises UsageError for what is none."""
    try:
        found = count if is_truth(axis) else operator.index(axis)  # type: ignore[arg-type]
    except TypeError:
        found = count
    if not -count <= found < count:
        raise UsageError(f"{name} is one of the {count} {what}", received=f"{name}={axis!r}", hint=hint)
    return found


def spec_of_operator(op: str | Path | Spec) -> Spec:
    """A name of one that ships, a file, the text of one, or a `Spec`. Raises SpecError, UsageError."""
    if isinstance(op, Spec):
        return op
    if not isinstance(op, str | Path):
        raise UsageError("an operation is a spec's name, path, text or Spec", received=type(op).__name__)
    return parse(op) if isinstance(op, str) and "\n" in op else load(op)


def returned(spec: Spec, names: Sequence[str] | None) -> tuple[str, ...]:
    """What a call returns; None: all that is not optional. UsageError for a tensor that the spec does not write."""
    written = (*spec.outputs, *spec.statistics)
    if names is None:
        return tuple(t.name for t in written if not t.optional)
    for name in names:
        if name not in [t.name for t in written]:
            hint = did_you_mean(name, [t.name for t in written])
            raise UsageError(f"'{spec.name}' writes no such tensor", received=name, hint=hint)
    return tuple(names)

"""Does a kernel's result meet the accuracy contract? Every element against its reference and its own error bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.errors import UsageError
from normgen.problem.problem import Problem
from normgen.problem.scales import ScaleLayout
from normgen.problem.tensors import TensorUse
from normgen.schedule.tiles.fragment import added_at_once
from normgen.verify.bounded import NOTHING, Bounded, allowed, whole, within_cells
from normgen.verify.contraction.product import leading
from normgen.verify.contraction.sides import (
    batch_of_line,
    by_inner,
    drifting,
    faint,
    in_batches,
    in_order,
    level,
    line_count,
    runs_of_rows,
    summed,
)
from normgen.verify.error_model import ColumnSum, Float32Error, sums_of_groups
from normgen.verify.interpret import Array, constants, drawn, seeds_of, spread_over_rows
from normgen.verify.program_walk import ValueWalk
from normgen.verify.reference import has_reference, reference
from normgen.verify.rows import Inputs, Outputs, of_rows
from normgen.verify.sources import Formulas, OpenWalk, walk_opener
from normgen.verify.varied.values import is_covered
from normgen.verify.verdict import Tally, Verdict

BLOCK_ELEMENTS = 1 << 16  # 0.5 MB a float64 temporary: a block's temporaries stay in the L2 cache
PRODUCT_LINES = 256


def check(
    problem: Problem,
    inputs: Inputs,
    outputs: Outputs | Mapping[str, Any],
    *,
    rows: int | None = None,
    chain: int | None = None,
    is_plain: bool = False,
    formulas: Formulas | None = None,
) -> Verdict:
    """Compare every written tensor with the float64 reference, element by element, within the derived bound.

    rows      look at so many rows only: the first, the last, every family, the rest at random; column outputs always
              sum all rows. None: every row
    chain     the longest run of additions in the schedule's row sums (`longest_chain`), for a tighter bound; None: cols
    is_plain  of random rows and of a schedule without Welford steps and pivots, for a tighter bound: `Float32Error`
    formulas  (name, text) of the written tensors of a backward problem, in the place of a hand-written reference
              or, for a user's own spec, of the derived program

    Raises UsageError for accumulated gradients without their start, VerificationError when the derived program is
    not the derivative of the spec's formula.
    """
    if problem.accumulate and not isinstance(outputs, Outputs):
        raise UsageError("accumulated gradients are checked with the Outputs of make_outputs", received="a mapping")
    arrays = outputs.arrays if isinstance(outputs, Outputs) else outputs
    start = outputs.start if isinstance(outputs, Outputs) else {}
    picked = pick_rows(inputs.families, rows, seed=inputs.seed)
    model = _model(problem, inputs, start, chain, formulas, is_plain=is_plain)
    parts = _parts(model, picked, [t for t in _written(problem) if _array(arrays, t) is not None])
    return _judged(problem, inputs, outputs, parts, rows_checked=len(picked))


@dataclass(frozen=True, kw_only=True)
class Part:
    """What some rows of one written tensor must hold: want and bound are [len(rows), width].

    Row -1 is the sum of all rows, or of those of the first batch, -2 that of the second one.
    """

    tensor: TensorUse
    rows: NDArray[np.intp]
    want: Array
    bound: Array


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Reference values and bounds of a problem's chosen rows, computed once for any number of kernels."""

    problem: Problem
    inputs: Inputs
    rows: NDArray[np.intp]
    parts: tuple[Part, ...] = field(repr=False)

    def check(self, outputs: Outputs | Mapping[str, Any]) -> Verdict:
        """The verdict `check` would give on these rows."""
        return _judged(self.problem, self.inputs, outputs, self.parts, rows_checked=len(self.rows))


def prepare(
    problem: Problem,
    inputs: Inputs,
    *,
    start: Mapping[str, Any] | None = None,
    rows: NDArray[np.intp] | None = None,
    chain: int | None = None,
    formulas: Formulas | None = None,
    repeated_to: int | None = None,
    is_plain: bool = False,
) -> Expectation:
    """What `check` computes before it looks at a result, kept: 16 bytes an element of `rows` x cols.

    start   what accumulated gradients held before the run (`Outputs.start`)
    rows    numbers of the rows to look at (`pick_rows`, `pick_slabs`); None: every row. Column outputs sum all rows.
    repeated_to  column outputs sum so many rows, in which the rows of `inputs` come again and again
    is_plain  as in `check`

    Raises UsageError for accumulated gradients without their start.
    """
    if problem.accumulate and not start:
        raise UsageError("accumulated gradients are checked with the Outputs of make_outputs", received="no start")
    picked = np.arange(line_count(problem)) if rows is None else rows
    model = _model(problem, inputs, start or {}, chain, formulas, is_plain=is_plain)
    parts = tuple(_parts(model, picked, _written(problem), repeated_to=repeated_to))
    return Expectation(problem=problem, inputs=inputs, rows=picked, parts=parts)


def column_parts(problem: Problem, inputs: Inputs) -> dict[str, ColumnSum]:
    """What the sums over rows of the column outputs hold, with what bounds them."""
    tensors = [t for t in _written(problem) if not _has_lines(t)]
    with np.errstate(all="ignore"):
        return _model(problem, inputs, {}, None, None).column_sums(tensors, problem.rows)[0]


def row_parts(
    problem: Problem, inputs: Inputs, rows: NDArray[np.intp], start: Mapping[str, Any] | None = None
) -> list[Part]:
    """What these rows must hold; of a problem that writes nothing of rows, its sums over all."""
    by_row = [t for t in _written(problem) if t.kind.by_row]
    return list(_parts(_model(problem, inputs, start or {}, None, None), rows, by_row or _written(problem)))


def _written(problem: Problem) -> list[TensorUse]:
    return [t for t in problem.tensors if t.is_written]


def _has_lines(tensor: TensorUse) -> bool:
    """Whether it is looked at line by line: of rows, or of inner. All others are sums over rows."""
    return tensor.kind.by_row or tensor.kind.by_inner


def _array(arrays: Mapping[str, Any], tensor: TensorUse) -> Any:
    """The result that is there for a tensor; one that was written in place has the name of its memory."""
    found = arrays.get(tensor.name)
    return arrays.get(tensor.memory) if found is None else found


def _model(
    problem: Problem,
    inputs: Inputs,
    start: Mapping[str, Any],
    chain: int | None,
    formulas: Formulas | None,
    *,
    is_plain: bool = False,
) -> _Model:
    return _Model(
        problem=problem,
        has_reference=has_reference(problem.spec, problem.direction),
        inputs=inputs,
        start=start,
        open_walk=walk_opener(problem, inputs.buffers, formulas),
        arithmetic=Float32Error(
            cols=problem.cols,
            chain=None if problem.inner else chain,
            is_plain=is_plain,
            at_once=added_at_once(problem) if problem.inner else 0,
        ),
    )


def _parts(
    model: _Model, picked: NDArray[np.intp], written: list[TensorUse], *, repeated_to: int | None = None
) -> Iterator[Part]:
    """The expected values of the written tensors, a block of rows at a time, column outputs last."""
    with np.errstate(all="ignore"):
        by_line = [t for t in written if _has_lines(t)]
        for block in _blocks(picked, model.problem):
            for tensor, want, bound in model.rows(block, by_line):
                yield Part(tensor=tensor, rows=block, want=want, bound=bound)
        total = model.problem.rows if repeated_to is None else repeated_to
        for tensor, want, bound in model.columns([t for t in written if not _has_lines(t)], total):
            if len(want):  # of no rows there may be no batches
                yield Part(tensor=tensor, rows=-1 - np.arange(len(want)), want=want, bound=bound)


def _judged(
    problem: Problem,
    inputs: Inputs,
    outputs: Outputs | Mapping[str, Any],
    parts: Iterable[Part],
    *,
    rows_checked: int,
) -> Verdict:
    """Tally the results against their parts."""
    arrays = outputs.arrays if isinstance(outputs, Outputs) else outputs
    names, codes = inputs.coded_families
    written = [t for t in _written(problem) if _array(arrays, t) is not None]
    results = {t.name: by_line(np.asarray(_array(arrays, t)), t) for t in written}
    tallies = {t.name: Tally(problem=problem, tensor=t, names=names, codes=codes) for t in written}
    with np.errstate(all="ignore"):
        for part in parts:
            if part.tensor.name in tallies:
                array = results[part.tensor.name]
                got = array[_span(part.rows)] if _has_lines(part.tensor) else array.reshape(len(part.rows), -1)
                tallies[part.tensor.name].add(part.rows, got, part.want, part.bound)
    return Verdict(
        problem=problem,
        tensors=tuple(tally.verdict() for tally in tallies.values()),
        overrun=outputs.overrun() if isinstance(outputs, Outputs) else (),
        padded=tuple(t.name for t in written if _has_padding(t, results[t.name], problem.rows)),
        rows_checked=rows_checked,
        seed=inputs.seed,
        families=tuple(names),
        left_out=inputs.left_out,
        uncounted=tuple(name for name in names if not is_covered(problem, name)),
    )


def by_line(array: Any, tensor: TensorUse) -> Any:
    """[lines, width] of what is stored in another order, as `Part` counts lines: each element by itself."""
    if not tensor.kind.by_inner:
        return tensor.dtype.by_element(tensor.layout.by_row(array))
    found = in_order(array, tensor)
    return found.reshape(-1, found.shape[-1]) if tensor.kind.by_batch else found


def _has_padding(tensor: TensorUse, stored: NDArray[Any], rows: int) -> bool:
    """Whether what memory has behind the last row is other than zeros."""
    return tensor.layout is ScaleLayout.SWIZZLED and bool(np.ascontiguousarray(stored[rows:]).view(np.uint8).any())


def _span(rows: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Neighbouring rows as a slice, which copies nothing."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def pick_rows(families: tuple[str, ...], count: int | None, *, seed: int = 0) -> NDArray[np.intp]:
    """Row numbers in order: all, or first, last, two of every family and random ones up to `count`."""
    total = len(families)
    if count is None or count >= total:
        return np.arange(total)
    rng = np.random.default_rng([seed, 2])
    names = np.array(families)
    must = {0, total - 1}
    for name in dict.fromkeys(families):
        at = np.flatnonzero(names == name)
        must |= {int(i) for i in rng.choice(at, min(2, at.size), replace=False)}
    others = rng.permutation(np.setdiff1d(np.arange(total), list(must)))
    return np.sort(np.concatenate([list(must), others[: max(0, count - len(must))]])).astype(np.intp)


def pick_slabs(families: tuple[str, ...], count: int, *, slabs: int = 5) -> NDArray[np.intp]:
    """About `count` row numbers in a few runs of neighbours, which a device hands over in few copies.

    The first rows, the last ones and runs evenly between them; every run holds each of the families that cycle
    through the rows, so that at least two runs of one cycle are picked whatever `count` says.
    """
    total, cycle = len(families), max(1, len(set(families)))
    slabs = max(2, min(slabs, count // cycle))
    length = max(cycle, count // slabs)
    if slabs * length >= total:
        return np.arange(total)
    starts = np.linspace(0, total - length, slabs).astype(np.intp)
    return np.unique((starts[:, None] + np.arange(length)).reshape(-1))


def _blocks(picked: NDArray[np.intp], problem: Problem) -> Iterator[NDArray[np.intp]]:
    """Of products large ones: each goes through all of the right side, which is that of one batch."""
    step = PRODUCT_LINES if summed(problem) else max(1, BLOCK_ELEMENTS // problem.cols)
    batches = [batch_of_line(problem, int(line)) for line in picked] if summed(problem) else []
    borders = (1 + np.flatnonzero(np.diff(batches))).tolist() if in_batches(problem) else []
    return (run[i : i + step] for run in np.split(picked, borders) for i in range(0, len(run), step))


@dataclass(frozen=True, kw_only=True)
class _Model:
    """What is right, and how exactly: reference values and bounds, block by block."""

    problem: Problem
    has_reference: bool
    inputs: Inputs
    start: Mapping[str, Any]
    open_walk: OpenWalk
    arithmetic: Float32Error
    made: dict[str, Array] = field(default_factory=dict)

    def rows(self, block: NDArray[np.intp], tensors: list[TensorUse]) -> Iterator[tuple[TensorUse, Array, Array]]:
        """(tensor, want, bound) of the elem and row outputs for these rows, each [len(block), cols or 1]."""
        if not tensors:
            return
        evaluation, values = self._open(block)
        wanted = self._reference(values)
        for tensor in tensors:
            found = self._accumulated(tensor, self._lines(tensor, evaluation.value(tensor.name), len(block)), block)
            shape = (len(block), self._width(tensor))
            want = wanted.get(tensor.name)
            if want is None:
                want = found.value
            elif tensor.name in self.start:
                want = want.reshape(shape) + self._start(tensor, block)
            bound = allowed(found, tensor.dtype)
            loose = faint(self.problem, [self.inputs.families[i] for i in block]) if summed(self.problem) else None
            bound = bound if loose is None or loose.shape != shape else np.where(loose, np.inf, bound)
            if tensor.group:  # each column has its group's value
                want, bound = want[:, :: tensor.group], bound[:, :: tensor.group]
            want = within_cells(want, tensor.dtype)
            if rest := shape[1] - want.shape[-1] if tensor.group else 0:  # bytes of 0 that belong to no group
                zero = float(np.zeros(1, np.uint8).view(tensor.dtype.numpy)[0])
                want = np.pad(want, ((0, 0), (0, rest)), constant_values=zero)
                bound = np.pad(bound, ((0, 0), (0, rest)), constant_values=NOTHING)
            yield tensor, np.broadcast_to(want.reshape(-1, want.shape[-1] if want.ndim == 2 else 1), shape), bound

    def columns(self, tensors: list[TensorUse], total: int) -> Iterator[tuple[TensorUse, Array, Array]]:
        """(tensor, want, bound) of the sums over `total` rows, which repeat the inputs', each [1, cols or 1].

        Of sums over the rows of each batch, [batches, cols], there is nothing to repeat.
        """
        if not tensors:
            return
        times, rest = divmod(total, max(self.problem.rows, 1))
        parts, exact = self.column_sums(tensors, self.problem.rows)
        if (times, rest) != (1, 0):
            rest_parts, rest_exact = self.column_sums(tensors, rest)
            parts = {name: part.scaled(times).plus(rest_parts[name]) for name, part in parts.items()}
            exact = {name: times * value + rest_exact.get(name, 0.0) for name, value in exact.items()}
        for tensor in tensors:
            added = self.problem.rows_per_batch if tensor.kind.by_batch else total
            part, group = parts[tensor.name], tensor.group
            sums = sums_of_groups(part, added, group) if group else part.bounded(added)
            found = self._accumulated(tensor, sums, None)
            want = exact.get(tensor.name, found.value)
            if group and tensor.name in exact:
                want = want.reshape(len(want), self.problem.cols // group, group).sum(-1)
            if tensor.name in exact and tensor.name in self.start:
                want = want + self._start(tensor, None)
            yield tensor, within_cells(want, tensor.dtype), allowed(found, tensor.dtype)

    def column_sums(self, tensors: list[TensorUse], rows: int) -> tuple[dict[str, ColumnSum], dict[str, Array]]:
        """Sums of the first `rows` rows: with what bounds them, and by the reference where there is one.

        Of a tensor with a value for each group of columns they are those of columns.
        """
        widths = {t.name: self.problem.cols if t.kind.is_spread else self._width(t) for t in tensors}
        zeros = {t.name: np.zeros((self._sums(t), widths[t.name])) for t in tensors}
        parts = {name: ColumnSum(zero, zero, zero, zero) for name, zero in zeros.items()}
        exact: dict[str, Array] = {}
        for block in self._blocks_of_rows(rows):
            evaluation, values = self._open(block)
            wanted = self._reference(values)
            for tensor in tensors:
                parts[tensor.name] = parts[tensor.name].plus(self._part(evaluation, tensor, block, rows))
                if tensor.name in wanted and not tensor.kind.by_batch:
                    exact[tensor.name] = exact.get(tensor.name, zeros[tensor.name]) + wanted[tensor.name]
        return parts, exact

    def _blocks_of_rows(self, rows: int) -> Iterator[NDArray[np.intp]]:
        """Blocks whose walks have each of the first `rows` rows once: of lines of inner one line of each batch."""
        if not by_inner(self.problem):
            return _blocks(np.arange(rows), self.problem)
        runs = enumerate(runs_of_rows(self.problem))
        return (np.array([batch * self.problem.inner]) for batch, run in runs if run.start < min(rows, run.stop))

    def _sums(self, tensor: TensorUse) -> int:
        """How many sums over rows a column of it has."""
        return self.problem.batches if tensor.kind.by_batch else 1

    def _part(self, evaluation: ValueWalk[Bounded], tensor: TensorUse, block: NDArray[np.intp], end: int) -> ColumnSum:
        """What the walk's rows before `end` add to a sum over rows."""
        walked, _ = self._places(block)
        rows = len(walked)
        if not tensor.is_total:
            batches = self.problem.batch_of(walked) if tensor.kind.by_batch else np.zeros(rows, np.intp)
            term, kept = evaluation.column_term(tensor.name), walked < end
            if not kept.all():
                error = None if term.error is None else spread_over_rows(np.asarray(term.error), rows)[kept]
                term = Bounded(spread_over_rows(np.asarray(term.value), rows)[kept], error)
            return self.arithmetic.column_part(term, batches[kept], self._sums(tensor))
        added, of_elements = evaluation.total_term(tensor.name)
        given = [t for t in self.problem.tensors if t.of and not t.is_written]
        is_random = bool(given) and all(t.kind.is_elem for t in given)
        return self.arithmetic.total_part(added, rows, of_elements=of_elements, is_random=is_random)

    def _open(self, block: NDArray[np.intp]) -> tuple[ValueWalk[Bounded], dict[str, Array]]:
        """The walk over one block, and the block's inputs in float64 kind shapes."""
        values = {name: self._values(name, block) for name in self.inputs.arrays}
        known = {name: Bounded(value) for name, value in values.items()}
        known |= {name: self.arithmetic.scalar(value) for name, value in self.inputs.scalars.items()}
        rows, terms = self._places(block)
        numbers, cols = rows if self.inputs.numbers is None else self.inputs.numbers[rows], self.problem.cols
        known |= {n: whole(v) for n, v in constants(numbers, cols, self.problem.inner, terms=terms).items()}
        randoms = drawn(self.problem.spec, seeds_of(self.problem.spec, self.inputs.arrays), numbers, cols)
        known |= {name: Bounded(value, least=0.0) for name, value in randoms.items()}
        values |= randoms
        arithmetic = self.arithmetic
        if summed(self.problem):
            families = [self.inputs.families[i] for i in block]
            arithmetic = replace(arithmetic, drifts=drifting(self.problem, families), level=level(self.problem))
        return self.open_walk(arithmetic, known), values

    def _places(self, block: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp] | None]:
        """The rows that a block of lines reads, and its places along inner if they are not all: see `by_inner`."""
        if not by_inner(self.problem):
            return block, None
        batch = batch_of_line(self.problem, int(block[0]))
        return np.arange(self.problem.rows)[runs_of_rows(self.problem)[batch]], block - batch * self.problem.inner

    def _values(self, name: str, block: NDArray[np.intp]) -> Array:
        """A tensor's values for one block, in the shape of its kind; those of no line are made once."""
        tensor, array = self.problem.tensor(name), self.inputs.arrays[name]
        if not summed(self.problem):
            shape = tensor.kind.broadcast_shape(self.problem.sizes._replace(rows=len(block)))
            return of_rows(array, tensor, self.problem, block).astype(np.float64).reshape(shape)
        line, batch = "inner" if by_inner(self.problem) else "rows", batch_of_line(self.problem, int(block[0]))
        axes, key = tensor.axes, f"{name} {batch}"
        if tensor.kind.by_batch:
            axes, array = axes[1:], array[batch]
        if line in axes:
            of_lines = block
            if line == "inner":
                run = runs_of_rows(self.problem)[batch]
                array, of_lines = array[run] if "rows" in axes else array, block - batch * self.problem.inner
            return leading(np.take(array, of_lines, axis=axes.index(line)), axes).astype(np.float64)
        if "rows" in axes:
            array = array[runs_of_rows(self.problem)[batch]]
        if key not in self.made:
            self.made[key] = leading(array, axes).astype(np.float64)
        return self.made[key]

    def _lines(self, tensor: TensorUse, found: Bounded, lines: int) -> Bounded:
        """[lines, width] of a result along inner."""
        if not tensor.kind.by_inner:
            return found
        line = "inner" if by_inner(self.problem) else "rows"
        shape = tensor.kind.of_batch.broadcast_shape(self.problem.sizes._replace(**{line: lines}))
        is_left = tensor.kind.by_row

        def flat(part: Array | float) -> Array:
            whole_part = np.broadcast_to(part, shape)
            return whole_part[:, :, 0].T if is_left else whole_part[:, 0, :]

        return Bounded(flat(found.value), None if found.error is None else flat(found.error), flat(found.least))

    def _reference(self, values: dict[str, Array]) -> dict[str, Array]:
        spec, direction = self.problem.spec, self.problem.direction
        if not self.has_reference:
            return {}
        return reference(spec.name, direction, values, self.inputs.scalars)

    def _start(self, tensor: TensorUse, block: NDArray[np.intp] | None) -> Array:
        start = by_line(np.asarray(self.start[tensor.name]), tensor)
        taken = start if block is None else start[block]
        return np.asarray(taken.astype(np.float64).reshape(-1, self._width(tensor)))

    def _width(self, tensor: TensorUse) -> int:
        if tensor.group:
            return tensor.layout.width(self.problem.cols // tensor.group)
        return self.problem.cols if tensor.kind.by_col else tensor.width(self.problem.sizes)

    def _accumulated(self, tensor: TensorUse, found: Bounded, block: NDArray[np.intp] | None) -> Bounded:
        if tensor.name not in self.start:
            return found
        return self.arithmetic.add(found, Bounded(self._start(tensor, block)))

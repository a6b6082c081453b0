"""Which dimensions of a function's tensors are its rows, and which its columns: sizes as products of axes.

Each dimension is a run of axes. What views cut is cut everywhere; what meets in an operation is one axis. The columns
are the axes that reductions go along, or the last ones; the others are the rows.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from normgen.torch.tracing.cuts.pieces import (
    REDUCTIONS,
    RESHAPES,
    SOFTMAXES,
    CannotCutError,
    Operation,
    bound,
    dims_of,
    is_pointwise,
    places_of,
    shape_of,
)

Runs = list[list[int]]  # of each dimension: its axes


@dataclass
class Axes:
    """Numbered axes with their sizes. An axis may be cut in two, or be the same as another one."""

    sizes: list[int] = field(default_factory=list)
    now: dict[int, list[int]] = field(default_factory=dict)  # an axis -> what it became

    def fresh(self, size: int) -> list[int]:
        if size == 1:
            return []
        self.sizes.append(size)
        return [len(self.sizes) - 1]

    def base(self, run: Sequence[int]) -> list[int]:
        return [one for axis in run for one in (self.base(self.now[axis]) if axis in self.now else [axis])]

    def cut(self, axis: int, first: int) -> None:
        size = self.sizes[axis]
        if size % first:
            raise CannotCutError
        self.now[axis] = [*self.fresh(first), *self.fresh(size // first)]

    def joined(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Both are the same axes."""
        while True:
            a, b = self.base(one), self.base(other)
            different = next(((x, y) for x, y in zip(a, b, strict=False) if x != y), None)
            if different is None:
                if len(a) != len(b):
                    raise CannotCutError
                return
            x, y = different
            if self.sizes[x] == self.sizes[y]:
                self.now[max(x, y)] = [min(x, y)]
            elif self.sizes[x] > self.sizes[y]:
                self.cut(x, self.sizes[y])
            else:
                self.cut(y, self.sizes[x])

    def viewed(self, run: Sequence[int], shape: Sequence[int]) -> Runs:
        """The same elements in another shape."""
        left, found = self.base(run), []
        for size in shape:
            axes: list[int] = []
            while size > 1:
                if not left:
                    raise CannotCutError
                axis = left.pop(0)
                if self.sizes[axis] > size:
                    self.cut(axis, size)
                    axis, rest = self.now[axis]
                    left.insert(0, rest)
                if size % self.sizes[axis]:
                    raise CannotCutError
                size //= self.sizes[axis]
                axes.append(axis)
            found.append(axes)
        return found


class Layout:
    """The axes of the steps of a kernel and of what they read, by step."""

    def __init__(self, steps: Sequence[Operation], leaves: Sequence[Operation]) -> None:
        self.axes = Axes()
        self.runs: dict[Operation, Runs] = {}
        self.reduced: dict[Operation, list[int]] = {}
        self.leaves, self.steps = leaves, steps
        for leaf in leaves:
            self.runs[leaf] = [self.axes.fresh(size) for size in shape_of(leaf)]
        for step in steps:
            self.runs |= {g: [[] for _ in shape_of(g)] for g in step.given if g.constant is not None}
            self.runs[step] = self.of(step)
        self._join_apart()
        self.columns = self._columns()
        self.main = self._main()
        every = list(dict.fromkeys(a for leaf in (self.main, *leaves) for a in self.axis_of(leaf)))
        if not any(set(every) == set(self.axis_of(step)) for step in (self.main, *steps)):
            raise CannotCutError  # several tensors of rows, of which each has its own
        self.lies = self._in_memory(self.main)
        self.columns = [a for a in every if a in set(self.columns)]
        self.rows = [a for a in every if a not in set(self.columns)]

    def axis_of(self, step: Operation) -> list[int]:
        return self.axes.base([axis for run in self.runs[step] for axis in run])

    def _in_memory(self, leaf: Operation) -> list[int]:
        """Its axes in the order in which they lie: those of a permuted argument are still where they were."""
        strides = leaf.val.stride()
        dims = sorted(range(len(strides)), key=lambda dim: -strides[dim])
        return self.axes.base([axis for dim in dims for axis in self.runs[leaf][dim]])

    def of(self, step: Operation) -> Runs:
        name, given = step.name, step.given
        first = self.runs[given[0]]
        if step.op is operator.getitem:
            if step.args[1] and given[0].name in ("native_layer_norm", "native_group_norm", "_fused_rms_norm"):
                raise CannotCutError  # a value of rows
            return first
        if is_pointwise(step.op):
            found: Runs = []
            for place in range(1, step.val.ndim + 1):
                here: list[int] = []
                for one in (self.runs[g] for g in given):
                    if place <= len(one) and one[-place]:
                        if here:
                            self.axes.joined(here, one[-place])
                        here = one[-place]
                found.insert(0, here)
            return found
        if name == "expand":
            return [[]] * (step.val.ndim - len(first)) + first
        shape = shape_of(step.args[0])
        if name in RESHAPES:
            _refuse_repeated(first, shape)
            return self.axes.viewed([axis for run in first for axis in run], list(step.val.shape))
        places = places_of(step.op, step.args, step.kwargs)
        if name in {*REDUCTIONS, *SOFTMAXES}:
            dims = sorted(dims_of(bound(step.op, step.args, step.kwargs), len(shape)))
            _refuse_repeated([first[d] for d in dims], [shape[d] for d in dims])
            self.reduced[step] = [axis for d in dims for axis in first[d]]
            return first if name in SOFTMAXES else [[] if d is None else first[d] for d in places]
        if places or name == "squeeze":
            return [[] if d is None else first[d] for d in places]
        return self.of_rows(step, name, first)

    def of_rows(self, step: Operation, name: str, first: Runs) -> Runs:
        if name in ("native_layer_norm", "_fused_rms_norm"):
            count = len(step.args[1])
            self.reduced[step] = [axis for run in first[-count:] for axis in run]
            for other in step.given[1:]:
                for one, more in zip(first[-count:], self.runs[other], strict=True):
                    self.axes.joined(one, more)
            return first
        if name == "native_group_norm":
            groups, channels = step.args[6], shape_of(step.args[0])[1]
            head, rest = self.axes.viewed(self.axes.base(first[1]), [groups, channels // groups])
            self.reduced[step] = [*rest, *(axis for run in first[2:] for axis in run)]
            for other in step.given[1:]:
                self.axes.joined([*head, *rest], self.runs[other][0])
            return first
        if name == "gather":
            dim = step.args[1] % len(first)
            for d, (one, more) in enumerate(zip(first, self.runs[step.args[2]], strict=True)):
                if d == dim and shape_of(step.args[2])[d] != 1:
                    raise CannotCutError
                if d != dim:
                    self.axes.joined(one, more)
            self.reduced[step] = first[dim]
            return [[] if d == dim else run for d, run in enumerate(first)]
        if name == "nll_loss_forward" and len(first) == 2 and step.args[2] is None:
            self.axes.joined(first[0], self.runs[step.args[1]][0])
            self.reduced[step] = first[1]
            return [first[0]] if step.args[3] == 0 else []
        raise CannotCutError

    def _join_apart(self) -> None:
        """What never meets along a dimension, as queries and keys, has the same rows where it has the same sizes."""
        main = self._main()
        for leaf in self.leaves:
            if shape_of(leaf) == shape_of(main):
                for run, more in zip(self.runs[main], self.runs[leaf], strict=True):
                    if not set(self.axes.base(more)) & set(self.axis_of(main)):
                        self.axes.joined(run, more)

    def _columns(self) -> list[int]:
        """The axes along which rows are reduced. What sums the rows themselves goes along all that a value has."""
        found: list[int] = []
        runs = [(step, self.axes.base(run)) for step, run in self.reduced.items()]
        for step, run in sorted(runs, key=lambda pair: len(pair[1])):
            is_total = set(run) == set(self.axis_of(step.given[0])) and step.name in ("sum", "mean")
            if not run or is_total:
                continue
            found = found or run
            if set(run) != set(found):
                raise CannotCutError
        if not found:
            longest = max((*self.leaves, *self.steps), key=lambda step: len(self.axis_of(step)))
            found = next((self.axes.base(run) for run in reversed(self.runs[longest]) if run), [])
        totals = [run for _, run in runs if run and not (set(run) >= set(found) or not set(run) & set(found))]
        if not found or totals:
            raise CannotCutError
        return found

    def _main(self) -> Operation:
        floats = [leaf for leaf in self.leaves if leaf.val.dtype.is_floating_point]
        if not floats:
            raise CannotCutError
        return max(floats, key=lambda leaf: (len(self.axis_of(leaf)), leaf.val.numel()))


def _refuse_repeated(runs: Runs, sizes: Sequence[int]) -> None:
    """Raise CannotCutError for a value that is repeated, which rows have once."""
    if any(not run and size > 1 for run, size in zip(runs, sizes, strict=True)):
        raise CannotCutError

"""Which variations change a result: an element differs, by more than both bounds, from what ordinary values give.

A call whose scalar has another value shows nothing about that scalar where no element depends on it: where the branch
that it switches on is not taken, or where rounding hides it. So the reference of some rows is evaluated once more with
the scalar at its default, or with the input that is at an extreme drawn like any other. The reference at the call's own
values is the one that its check holds results to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.problem.tensors import TensorUse
from normgen.verify.check import Expectation, Part, row_parts
from normgen.verify.contraction.sides import families_of, line_axis, rights
from normgen.verify.interpret import Array
from normgen.verify.rows import Inputs, Pen
from normgen.verify.varied.values import ORDINARY, as_text, of_tensor

FIRST_ROWS = 6  # most values change every row


@dataclass(frozen=True, kw_only=True)
class Effects:
    """The variations of a call, as texts: those that change an element of the rows looked at, and the others."""

    seen: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def effects(expected: Expectation, start: Mapping[str, Any] | None = None) -> Effects:
    """Of the scalars that are not at their default; with all at it, of the families of other inputs than the first.

    Of a product of matrices those of its right sides, too, where its rows are of several families. `start` is what
    accumulated gradients held before the run.
    """
    problem, inputs = expected.problem, expected.inputs
    found: dict[str, bool] = {}
    if len(expected.rows):
        known = _Known(expected, start or {})
        for name, default in problem.spec.scalars:
            usual = float(np.float32(default))
            if inputs.scalars[name] != usual:
                others = replace(inputs, scalars=inputs.scalars | {name: usual})
                found[as_text(name, inputs.scalars[name])] = any(
                    bool(known.changed(others, part).any()) for part in _first_and_others(expected)
                )
        for tensor in () if found else problem.tensors:
            found |= _of_tensor(known, tensor)
        for tensor in rights(problem) if len(set(inputs.families)) > 1 else ():
            found |= _of_right(known, tensor)
    return Effects(
        seen=tuple(text for text, is_seen in found.items() if is_seen),
        unseen=tuple(text for text, is_seen in found.items() if not is_seen),
    )


def _first_and_others(expected: Expectation) -> Iterator[NDArray[np.intp]]:
    """A few of the rows, then two of each family: first those in which a label, or another input, is at an extreme."""
    yield expected.rows[:FIRST_ROWS]
    by_family = sorted(_by_family(expected.inputs, expected.rows), key=lambda found: not of_tensor(found[0]))
    rows = np.concatenate([at for _, at in by_family])
    for first in range(0, len(rows), step := 2 * FIRST_ROWS):
        yield np.sort(rows[first : first + step])


def _by_family(inputs: Inputs, rows: NDArray[np.intp]) -> Iterator[tuple[str, NDArray[np.intp]]]:
    names, codes = inputs.coded_families
    for number, name in enumerate(names):
        at = rows[codes[rows] == number]
        if at.size:
            yield name, at[:2]


def _of_tensor(known: _Known, tensor: TensorUse) -> dict[str, bool]:
    """Whether rows in which a tensor is at an extreme differ from those in which it is not, by family."""
    problem, inputs = known.expected.problem, known.expected.inputs
    varied = [item for item in _by_family(inputs, known.expected.rows) if of_tensor(item[0]) == tensor.name]
    if not varied:
        return {}
    at = np.sort(np.concatenate([part for _, part in varied]))
    rng = np.random.default_rng([inputs.seed, 3])
    pen = Pen(problem=problem, of_row=inputs.families, rng=rng, signed=inputs.signed)
    buffer = inputs.buffers[tensor.name]
    array = buffer.array.copy()
    array[at] = tensor.dtype.stored(pen.ordinary(tensor)[at])
    changed = known.changed(replace(inputs, buffers=inputs.buffers | {tensor.name: replace(buffer, array=array)}), at)
    return {family: bool(changed[np.isin(at, part)].any()) for family, part in varied}


def _of_right(known: _Known, tensor: TensorUse) -> dict[str, bool]:
    """Whether the result's columns differ from those of normal lines, by family of the lines of a right side."""
    problem, inputs, rows = known.expected.problem, known.expected.inputs, known.expected.rows
    of_line = np.array(families_of(tensor, problem))
    at = rows[np.array(inputs.families)[rows] == ORDINARY][:FIRST_ROWS]
    at = at if at.size else rows[:FIRST_ROWS]
    buffer = inputs.buffers[tensor.name]
    array, lines = buffer.array.copy(), np.flatnonzero(of_line != ORDINARY)
    of_lines = np.moveaxis(array, line_axis(tensor, problem), 0)
    normal = np.random.default_rng([inputs.seed, 3]).standard_normal(of_lines[lines].shape)
    of_lines[lines] = tensor.dtype.stored(normal)
    others = replace(inputs, buffers=inputs.buffers | {tensor.name: replace(buffer, array=array)})
    changed = np.zeros(of_line.size, dtype=bool)
    for _, differs in known.differing(others, at):
        changed |= differs.any(axis=0) if differs.shape[1] == of_line.size else False
    named = dict.fromkeys(of_line[lines].tolist())
    return {f"{tensor.name} {name}": bool(changed[of_line == name].any()) for name in named}


class _Known:
    """What a call must give, row by row, to be held beside what other inputs would."""

    def __init__(self, expected: Expectation, start: Mapping[str, Any]) -> None:
        self.expected, self.start = expected, start
        self.parts: dict[str, list[Part]] = {}
        for part in expected.parts:
            self.parts.setdefault(part.tensor.name, []).append(part)

    def changed(self, others: Inputs, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """[len(rows)]: in which of these rows some element differs; of sums over rows alone, in all or none."""
        changed = np.zeros(len(rows), dtype=bool)
        for part, differs in self.differing(others, rows):
            if part.rows[0] < 0:
                changed |= differs.any()
            else:
                changed[np.searchsorted(rows, part.rows)] |= differs.any(axis=1)
        return changed

    def differing(self, others: Inputs, rows: NDArray[np.intp]) -> Iterator[tuple[Part, NDArray[np.bool_]]]:
        """What other inputs would give of these rows, and which of its elements they change: [lines, width]."""
        with np.errstate(all="ignore"):
            for other in row_parts(self.expected.problem, others, rows, self.start):
                want, bound = self._of(other)
                is_near = np.abs(want - other.want) <= bound + other.bound
                is_same = (want == other.want) | (np.isnan(want) & np.isnan(other.want))
                loose = np.isinf(bound) | np.isinf(other.bound)
                yield other, ~(is_near | is_same | loose)

    def _of(self, other: Part) -> tuple[Array, Array]:
        """(want, bound) of the rows of another part."""
        want, bound = np.empty(other.want.shape), np.empty(other.want.shape)
        left = np.ones(len(other.rows), dtype=bool)
        for part in self.parts[other.tensor.name]:
            found = np.isin(other.rows, part.rows)
            at = np.searchsorted(part.rows, other.rows[found]) if part.rows[0] >= 0 else slice(None)
            want[found], bound[found] = part.want[at], np.broadcast_to(part.bound, part.want.shape)[at]
            left &= ~found
        assert not left.any(), "every row that is looked at is expected"
        return want, bound

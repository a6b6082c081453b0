"""Which variations change a result: an element differs, by more than both bounds, from what ordinary values give.

A call whose scalar has another value shows nothing about that scalar where no element depends on it: where the branch
that it switches on is not taken, or where rounding hides it. So the reference of some rows is evaluated once more with
the scalar at its default, or with the input that is at an extreme drawn like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.verify.check import Part, row_parts
from normgen.verify.contraction.sides import families_of, line_axis, rights
from normgen.verify.rows import Inputs, Pen
from normgen.verify.varied.values import ORDINARY, as_text, of_tensor

FIRST_ROWS = 6  # most values change every row


@dataclass(frozen=True, kw_only=True)
class Effects:
    """The variations of a call, as texts: those that change an element of the rows looked at, and the others."""

    seen: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def effects(problem: Problem, inputs: Inputs, rows: NDArray[np.intp]) -> Effects:
    """Of the scalars that are not at their default; with all at it, of the families of other inputs than the first.

    Of a product of matrices those of its right sides, too, where its rows are of several families.
    """
    found: dict[str, bool] = {}
    if len(rows):
        for name, default in problem.spec.scalars:
            usual = float(np.float32(default))
            if inputs.scalars[name] != usual:
                others = replace(inputs, scalars=inputs.scalars | {name: usual})
                found[as_text(name, inputs.scalars[name])] = any(
                    bool(_changed(problem, inputs, others, part).any()) for part in _first_and_others(inputs, rows)
                )
        for tensor in () if found else problem.tensors:
            found |= _of_tensor(problem, inputs, tensor, rows)
        for tensor in rights(problem) if len(set(inputs.families)) > 1 else ():
            found |= _of_right(problem, inputs, tensor, rows)
    return Effects(
        seen=tuple(text for text, is_seen in found.items() if is_seen),
        unseen=tuple(text for text, is_seen in found.items() if not is_seen),
    )


def _first_and_others(inputs: Inputs, rows: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """A few of the rows, then two of each family."""
    yield rows[:FIRST_ROWS]
    yield np.sort(np.concatenate([at for _, at in _by_family(inputs, rows)]))


def _by_family(inputs: Inputs, rows: NDArray[np.intp]) -> Iterator[tuple[str, NDArray[np.intp]]]:
    names, codes = inputs.coded_families
    for number, name in enumerate(names):
        at = rows[codes[rows] == number]
        if at.size:
            yield name, at[:2]


def _of_tensor(problem: Problem, inputs: Inputs, tensor: TensorUse, rows: NDArray[np.intp]) -> dict[str, bool]:
    """Whether rows in which a tensor is at an extreme differ from those in which it is not, by family."""
    varied = [(family, at) for family, at in _by_family(inputs, rows) if of_tensor(family) == tensor.name]
    if not varied:
        return {}
    at = np.sort(np.concatenate([part for _, part in varied]))
    rng = np.random.default_rng([inputs.seed, 3])
    pen = Pen(problem=problem, of_row=inputs.families, rng=rng, signed=inputs.signed)
    buffer = inputs.buffers[tensor.name]
    array = buffer.array.copy()
    array[at] = tensor.dtype.stored(pen.ordinary(tensor)[at])
    others = replace(inputs, buffers=inputs.buffers | {tensor.name: replace(buffer, array=array)})
    changed = _changed(problem, inputs, others, at)
    return {family: bool(changed[np.isin(at, part)].any()) for family, part in varied}


def _of_right(problem: Problem, inputs: Inputs, tensor: TensorUse, rows: NDArray[np.intp]) -> dict[str, bool]:
    """Whether the result's columns differ from those of normal lines, by family of the lines of a right side."""
    of_line = np.array(families_of(tensor, problem))
    at = rows[np.array(inputs.families)[rows] == ORDINARY][:FIRST_ROWS]
    at = at if at.size else rows[:FIRST_ROWS]
    buffer = inputs.buffers[tensor.name]
    array, lines = buffer.array.copy(), np.flatnonzero(of_line != ORDINARY)
    axis = line_axis(tensor, problem)
    normal = np.random.default_rng([inputs.seed, 3]).standard_normal((lines.size, array.shape[1 - axis]))
    np.moveaxis(array, axis, 0)[lines] = tensor.dtype.stored(normal)
    others = replace(inputs, buffers=inputs.buffers | {tensor.name: replace(buffer, array=array)})
    changed = np.zeros(of_line.size, dtype=bool)
    for _, differs in _differing(problem, inputs, others, at):
        changed |= differs.any(axis=0) if differs.shape[1] == of_line.size else False
    named = dict.fromkeys(of_line[lines].tolist())
    return {f"{tensor.name} {name}": bool(changed[of_line == name].any()) for name in named}


def _changed(problem: Problem, inputs: Inputs, others: Inputs, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """[len(rows)]: in which of these rows some element differs; of sums over rows alone, in all or none."""
    changed = np.zeros(len(rows), dtype=bool)
    for part, differs in _differing(problem, inputs, others, rows):
        if part.rows[0] < 0:
            changed |= differs.any()
        else:
            changed[np.searchsorted(rows, part.rows)] |= differs.any(axis=1)
    return changed


def _differing(
    problem: Problem, inputs: Inputs, others: Inputs, rows: NDArray[np.intp]
) -> Iterator[tuple[Part, NDArray[np.bool_]]]:
    """The parts of these rows, and which of their elements the other inputs change: [lines, width]."""
    both = zip(row_parts(problem, inputs, rows), row_parts(problem, others, rows), strict=True)
    with np.errstate(all="ignore"):
        for one, other in both:
            is_near = np.abs(one.want - other.want) <= one.bound + other.bound
            is_same = (one.want == other.want) | (np.isnan(one.want) & np.isnan(other.want))
            loose = np.isinf(one.bound) | np.isinf(other.bound)
            yield one, ~(is_near | is_same | loose)

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
from normgen.verify.check import row_parts
from normgen.verify.rows import Inputs, Pen
from normgen.verify.varied.values import as_text, of_tensor

FIRST_ROWS = 6  # most values change every row


@dataclass(frozen=True, kw_only=True)
class Effects:
    """The variations of a call, as texts: those that change an element of the rows looked at, and the others."""

    seen: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def effects(problem: Problem, inputs: Inputs, rows: NDArray[np.intp]) -> Effects:
    """Of the scalars that are not at their default; with all at it, of the families of other inputs than the first."""
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


def _changed(problem: Problem, inputs: Inputs, others: Inputs, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """[len(rows)]: in which of these rows some element differs; of sums over rows alone, in all or none."""
    changed = np.zeros(len(rows), dtype=bool)
    both = zip(row_parts(problem, inputs, rows), row_parts(problem, others, rows), strict=True)
    with np.errstate(all="ignore"):
        for one, other in both:
            is_near = np.abs(one.want - other.want) <= one.bound + other.bound
            is_same = (one.want == other.want) | (np.isnan(one.want) & np.isnan(other.want))
            loose = np.isinf(one.bound) | np.isinf(other.bound)
            differs = ~(is_near | is_same | loose).all(axis=1)
            if one.rows[0] < 0:
                changed |= differs.any()
            else:
                changed[np.searchsorted(rows, one.rows)] |= differs
    return changed

"""The one place where the handles of operators are made: which of them a call takes."""

from __future__ import annotations

from collections.abc import Mapping

from normgen.problem.question import Direction
from normgen.python.handle import Kernel, kernel
from normgen.spec.spec import Spec


def handle(
    spec: Spec,
    direction: Direction,
    *,
    rows: int,
    cols: int,
    inner: int = 0,
    batches: int = 0,
    dtypes: Mapping[str, str],
    present: tuple[str, ...],
    gradients: tuple[str, ...],
    deterministic: bool,
    stable_parameters: bool,
    device: int,
    any_rows: bool = False,
    beside: int = 1,
    layout: Mapping[str, str] | None = None,
) -> Kernel:
    """A kernel of the spec for these rows; it takes any other number of them too. `any_rows`: by a schedule of theirs.

    inner    length of that axis; 0 of a gradient that reads no tensor with it
    batches  that have a matrix of their own; 0: none has
    beside   rows that lie side by side: arrays are then [.., cols, ..], with so many elements behind each of a row
    layout   matrix -> the order of its axes where it is another one than the spec's

    Warns, and raises, as `normgen.kernel`.
    """
    return kernel(
        spec,
        shape=(max(rows, 1), cols) if beside == 1 else (rows // beside, cols, beside),
        axis=None if beside == 1 else 1,
        inner=(inner or 1) if spec.has_inner else None,
        batches=batches or None,
        rows="any" if any_rows else None,
        dtype=dtypes[spec.inputs[0].name],
        dtypes=dtypes,
        direction=direction.value,
        present=present,
        gradients=gradients if direction is Direction.BACKWARD else None,
        deterministic=deterministic,
        stable_parameters=stable_parameters,
        device=device,
        layout=layout or None,
    )


def band(rows: int) -> int:
    """Calls of one band share a handle, whose schedule was made for the rows of the first: at most twice as many."""
    return (rows - 1).bit_length() if rows else -1

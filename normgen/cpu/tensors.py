"""Placing the caller's arrays so that no access can stray from one into another unseen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgen.errors import UsageError

Array = np.ndarray[Any, np.dtype[Any]]

Lines = Array | slice

_GAP_BYTES = 1 << 20  # between two tensors; never touched, so it costs address space only
_PLACE_BYTES = 256  # addresses keep their value modulo this


@dataclass(frozen=True, kw_only=True)
class ArenaTensor:
    """A tensor in the arena: `rows` rows of `row_bytes` legal bytes, `pitch_bytes` apart."""

    name: str
    original: Array
    view: Array
    address: int
    rows: int
    row_bytes: int
    pitch_bytes: int
    lines: Lines  # what is copied

    @property
    def pitch(self) -> int:
        """Distance of rows in elements."""
        return self.pitch_bytes // self.original.itemsize

    def write_back(self) -> None:
        self.original[self.lines] = self.view[self.lines]


def place(arrays: Mapping[str, Array | None], *, far: Array | None = None) -> dict[str, ArenaTensor]:
    """Copies of the arrays in one arena, wide apart, with their row strides and alignment. Raises UsageError.

    `far` are rows far apart, up to the last one: of arrays with so many these alone are copied.
    """
    given = {name: array for name, array in arrays.items() if array is not None}
    extents = {name: _extent(name, array) for name, array in given.items()}
    total = sum(rows * pitch_bytes + _GAP_BYTES + 2 * _PLACE_BYTES for rows, _, pitch_bytes in extents.values())
    arena: Array = np.empty(total + _GAP_BYTES, dtype=np.uint8)
    base = arena.ctypes.data
    position = base + _GAP_BYTES
    placed = {}
    for name, array in given.items():
        rows, row_bytes, pitch_bytes = extents[name]
        address = position + (array.ctypes.data - position) % _PLACE_BYTES
        strides = array.strides if array.ndim < 2 else (pitch_bytes, array.itemsize)
        strides = strides if array.ndim < 3 else (array.shape[1] * pitch_bytes, *strides)
        view: Array = np.ndarray(array.shape, array.dtype, arena, address - base, strides)
        lines: Lines = far if far is not None and len(array) == far[-1] + 1 else slice(None)
        view[lines] = array[lines]
        placed[name] = ArenaTensor(
            name=name,
            original=array,
            view=view,
            address=address,
            rows=rows,
            row_bytes=row_bytes,
            pitch_bytes=pitch_bytes,
            lines=lines,
        )
        position = address + rows * pitch_bytes + _GAP_BYTES
    return placed


def _extent(name: str, array: Array) -> tuple[int, int, int]:
    """(rows, row_bytes, pitch_bytes); a one-dimensional array is one row."""
    if array.ndim not in (1, 2, 3):
        rule = "a tensor has one dimension, or is [rows, cols] or a matrix of each batch"
        raise UsageError(rule, received=f"{name}: {array.ndim} dimensions")
    length = array.shape[-1]
    if length > 1 and array.size and array.strides[-1] != array.itemsize:
        raise UsageError("the elements of a row must lie side by side", received=f"{name}: strides {array.strides}")
    row_bytes = length * array.itemsize
    if array.ndim == 1:
        return 1, row_bytes, row_bytes
    lines, steps = array.shape[-2], array.strides[-2]
    if array.ndim > 2 and min(array.shape) > 0:
        if array.shape[0] > 1 and lines > 1 and array.strides[0] != lines * steps:
            rule = "the matrices of all batches lie one behind the other, the lines of each in one distance"
            raise UsageError(rule, received=f"{name}: strides {array.strides} of {array.shape}")
        lines, steps = array.shape[0] * lines, steps if lines > 1 else array.strides[0]
    pitch_bytes = max(steps, row_bytes) if lines < 2 else steps
    if pitch_bytes < row_bytes or pitch_bytes % array.itemsize:
        raise UsageError("rows must not overlap", received=f"{name}: strides {array.strides}, {row_bytes} bytes a row")
    return lines, row_bytes, pitch_bytes

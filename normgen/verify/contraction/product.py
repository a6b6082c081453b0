"""Values along inner, and their products, in float64.

A value that varies along inner has that axis in front: a left one [inner, rows, 1], a matrix [inner, 1, cols], a value
of inner alone [inner, 1, 1]. So every value of rows and columns broadcasts against it as it is, and a value of inner
never meets columns, even if there are as many. A product sums one of the three axes: inner gives [rows, cols], cols
[inner, rows, 1] and rows [inner, 1, cols]. Of a matrix for each batch the batches lie where rows do: [inner, batches,
cols]; what sums rows then gives one of each batch.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from normgen.spec.spec import Kind

Array = NDArray[np.float64]
A = TypeVar("A", bound=Any)  # an array of numpy, torch or jax
_ORDER = ("inner", "rows", "cols")
WITH_INNER = len(_ORDER)  # axes of an array that varies along inner; all others have two, or none
AXIS = {Kind.INNER: 0, Kind.ROW: -2, Kind.COL: -1}  # of an array, by what it varies along


def leading(array: A, axes: tuple[str, ...]) -> A:
    """A tensor's array, its sizes those of `axes` in the order of memory, in the shape of its kind: a view."""
    if not axes:
        return cast(A, array.reshape(()))
    if axes[0] == "batches":
        ordered = array.reshape(-1, *array.shape[-2:])
        return cast(A, ordered.swapaxes(0, 1) if axes[1] == "inner" else ordered.swapaxes(0, 2).swapaxes(1, 2))
    ordered = array if axes == tuple(axis for axis in _ORDER if axis in axes) else array.T
    shape = [axis for axis in _ORDER if axis in axes or axis != "inner"]
    return cast(A, ordered[tuple(slice(None) if axis in axes else np.newaxis for axis in shape)])


def as_it_lies(value: A, axes: tuple[str, ...]) -> A:
    """[inner, rows, batches or 1, cols or 1] as an array with these axes, in this order: what `leading` was given."""
    if axes[0] == "batches":
        return cast(A, value.swapaxes(0, 1) if axes[1] == "inner" else value.swapaxes(1, 2).swapaxes(0, 2))
    found = value[tuple(slice(None) if axis in axes else 0 for axis in _ORDER)]
    return cast(A, found if axes == tuple(axis for axis in _ORDER if axis in axes) else found.T)


def summed_axis(a: A, b: A) -> Kind:
    """What a formula's `a @ b` sums: the one of inner and cols that both have. ValueError where there is none."""
    if a.ndim == b.ndim == WITH_INNER and all(min(a.shape[axis], b.shape[axis]) <= 1 for axis in (-2, -1)):
        return Kind.INNER
    if sorted((a.ndim, b.ndim)) == [2, WITH_INNER]:
        return Kind.COL
    raise ValueError("'@' sums the one of inner and cols that both sides have")


def product(a: A, b: A, over: Kind, batches: int = 1) -> A:
    """Σ a b over one axis, whichever of the two is the left side; of `batches`, by the matrix of each."""
    if over is Kind.INNER:
        is_left = a.shape[-1] == 1 and (b.shape[-1] > 1 or a.shape[-2] >= b.shape[-2])
        left, right = (a, b) if is_left else (b, a)
        if batches != 1:
            found = _by_batch(left[:, :, 0], batches, 1).swapaxes(1, 2) @ right.swapaxes(0, 1)
            return cast(A, found.reshape(left.shape[1], right.shape[-1]))
        return cast(A, left[:, :, 0].T @ right[:, 0, :])
    deep, flat = (a, b) if a.ndim == WITH_INNER else (b, a)
    if batches != 1:
        runs = _by_batch(flat, batches, 0)
        if over is Kind.ROW:
            return cast(A, (_by_batch(deep[:, :, 0], batches, 1) @ runs).swapaxes(0, 1))
        found = deep.swapaxes(0, 1) @ runs.swapaxes(1, 2)
        return cast(A, found.swapaxes(0, 1).reshape(len(deep), len(flat), 1))
    if over is Kind.COL:
        return cast(A, (deep[:, 0, :] @ flat.T)[:, :, np.newaxis])
    return cast(A, (deep[:, :, 0] @ flat)[:, np.newaxis, :])


def _by_batch(array: A, batches: int, rows: int) -> A:
    """An array of two axes, of which number `rows` is that of rows: one for each batch of these."""
    shape = [*array.shape]
    shape[rows : rows + 1] = batches, array.shape[rows] // max(batches, 1)
    return cast(A, array.reshape(shape).swapaxes(0, rows))


def least_of_terms(a: NDArray[np.int64], b: NDArray[np.int64], over: Kind) -> NDArray[np.int64]:
    """min a + min b along the axis that a product sums, in the product's shape."""
    if over is Kind.INNER:
        return np.asarray(a.min(axis=0) + b.min(axis=0))
    return np.asarray(a.min(axis=AXIS[over], keepdims=True) + b.min(axis=AXIS[over], keepdims=True))


def in_lines(array: Array) -> Array:
    """[lines, inner] of a value along inner and rows, or inner and columns: what its reductions run over."""
    return np.moveaxis(array, 0, -1).reshape(-1, array.shape[0])

"""What a traced function and its spec are compared on: rows that tell formulas apart, labels, infinities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from normgen.torch.replacing.probing import telling_rows
from normgen.torch.tracing.recording import COLS, INNER
from normgen.torch.tracing.values import Traced

Tensor = Any

_MOST_CONSTANTS = 8
_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_COLS, _INNER = 48, 36  # where the function leaves them open


def samples(found: Traced, dtypes: Sequence[Any], generator: Any) -> list[list[Tensor]]:
    """Arguments of the function: rows of all families; labels within the columns, then some that are not."""
    count = len(found.recorded.axes) - 1
    whole = math.lcm(found.spec.whole_cols, _COLS)  # rows are rolled by shares of their columns
    cols = found.recorded.axes[-1] if isinstance(found.recorded.axes[-1], int) else whole
    leading = [2] * (count - 1) + [8] if count > 1 else [16] * count
    inner = found.recorded.inner
    sizes = {**dict(enumerate(leading)), COLS: cols, INNER: inner if isinstance(inner, int) else _INNER}
    length = cols if inner is None else sizes[INNER]  # of the rows that formulas reduce
    has_labels = any(not (d.is_floating_point or d is torch.bool) for d in dtypes)
    others = [None, *_whole_constants(found.recorded.raw.graph), -100] if has_labels else [None]
    given = []
    for number in range(1 if count else 8):
        for other in dict.fromkeys(others):
            tensors = []
            for place, (dims, dtype) in enumerate(zip(found.recorded.dims, dtypes, strict=True)):
                shape = [math.prod(sizes[axis] for axis in dim) for dim in dims]
                is_side = {COLS, INNER} <= {axis for dim in dims for axis in dim}
                tensors.append(_sample(shape, dtype, 0 if is_side else length, generator, place + number, other))
            given.append(tensors)
    if has_labels:  # of a function that takes them less or more a number: some that are in a narrow range
        narrow = [t if d.is_floating_point or d is torch.bool else t % 2 for t, d in zip(given[0], dtypes, strict=True)]
        given.append(narrow)
    if count and not _asks_for_whole_numbers(found.recorded.raw.graph):
        beside = [not {COLS, INNER} <= {axis for dim in dims for axis in dim} for dims in found.recorded.dims]
        rows = [t.is_floating_point() and is_beside for t, is_beside in zip(given[0], beside, strict=True)]
        given.append([_with_infinities(t, length) if i else t for t, i in zip(given[0], rows, strict=True)])
    return given


def _whole_constants(graph: Any) -> list[int]:
    """The numbers that a graph's operations name, among them labels that it leaves out."""
    found: dict[int, None] = {}
    for node in graph.nodes:
        for arg in (*node.args, *node.kwargs.values()):
            if type(arg) is int and abs(arg) < 2**31:
                found[arg] = None
    return list(found)[:_MOST_CONSTANTS]


def _asks_for_whole_numbers(graph: Any) -> bool:
    """Whether it makes whole numbers of others: what they are of infinities is the device's."""

    def kinds(node: Any) -> list[Any]:
        found = node.meta.get("val")
        return [t.dtype for t in (found if isinstance(found, tuple | list) else [found]) if isinstance(t, torch.Tensor)]

    return any(
        dtype in _WHOLE and any(given.is_floating_point for n in node.all_input_nodes for given in kinds(n))
        for node in graph.nodes
        for dtype in kinds(node)
    )


def _sample(shape: Sequence[int], dtype: Any, cols: int, generator: Any, number: int, other: int | None) -> Tensor:
    """other  the value of some of the labels"""
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=dtype, device="cpu")
    if not dtype.is_floating_point:
        labels = torch.randint(0, cols, shape, generator=generator, dtype=torch.int64, device="cpu")
        share = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
        return (labels if other is None else torch.where(share < 0.3, other, labels)).to(dtype)
    rows = math.prod(shape[:-1])
    if (len(shape) > 1 and shape[-1] == cols) or (shape == [cols] and number == 0):
        families = telling_rows(cols, generator).reshape(-1, cols).roll(number, 0)
        return families.repeat(-(-rows // 16), 1)[:rows].reshape(shape).to(dtype)
    return randn(shape, generator).to(dtype)


def _with_infinities(tensor: Tensor, cols: int) -> Tensor:
    """Rows of which some elements, or all, are -inf, as behind a mask, or inf."""
    if tensor.ndim < 2 or tensor.shape[-1] != cols or tensor.dtype.itemsize == 1:
        return tensor
    found = tensor.clone()
    rows = found.view(-1, cols)
    rows[0::4, ::2], rows[1::4] = -torch.inf, -torch.inf
    rows[2::8, 1], rows[6::8] = torch.inf, torch.inf
    return found


def randn(shape: Sequence[int], generator: Any) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

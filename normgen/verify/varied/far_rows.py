"""A call with more rows than anybody draws: those that are looked at lie at both ends, all others hold 0.

What numbers rows with 16 bits is wrong from row 65536 on. So many rows need not be drawn, nor evaluated: inputs are
those of a few rows, which know their numbers in the launch, and lie at these in memory whose pages are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.verify.rows import Buffer, allocate


@dataclass(frozen=True, kw_only=True)
class FarRows:
    """The rows of `problem`, of which those from `first` on have numbers that are larger by `gap`.

    A gap is a multiple of the heads, so that each row keeps its head; of a problem with batches each row has its own.
    """

    problem: Problem
    first: int
    gap: int

    @cached_property
    def launched(self) -> Problem:
        """The problem with all rows."""
        rows = self.problem.rows + self.gap
        return self.problem.with_rows(rows) if self.problem.spec.has_heads else replace(self.problem, rows=rows)

    @cached_property
    def numbers(self) -> NDArray[np.intp]:
        """[rows]: the number of each row in the launch."""
        number = np.arange(self.problem.rows)
        return np.where(number < self.first, number, number + self.gap)

    def spread(self, buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
        """The memory of a launch: rows at their numbers."""
        found = dict(buffers)
        for tensor in self.problem.tensors:
            if tensor.name in buffers and self._has_row_each(tensor):
                found[tensor.name] = allocate(tensor, self.launched, is_sparse=True)
                found[tensor.name].array[self.numbers] = buffers[tensor.name].array
        return found

    def gather(self, launched: Mapping[str, Buffer], buffers: Mapping[str, Buffer]) -> None:
        """What the launch left in the rows, into the memory of these alone."""
        for name, buffer in buffers.items():
            if launched[name] is not buffer:
                buffer.array[...] = launched[name].array[self.numbers]

    def _has_row_each(self, tensor: TensorUse) -> bool:
        return tensor.kind.by_row or (tensor.kind.by_batch and not self.problem.spec.has_heads)

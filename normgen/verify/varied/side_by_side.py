"""Rows that lie side by side in memory, and as the reference reads them: one behind the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from normgen.problem.problem import Problem
from normgen.verify.rows import Buffer, Stored, side_by_side


@dataclass(frozen=True, kw_only=True)
class PitchedMemory:
    """The memory of a launch of `problem`, with the pitches of tensors that do not have the problem's."""

    problem: Problem
    pitches: Mapping[str, int]

    def spread(self, buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
        """The memory of a launch: element (r, c) at r // col_stride * pitch + c * col_stride + r % col_stride."""
        found = dict(buffers)
        for tensor in self.problem.tensors:
            if tensor.name in buffers and tensor.kind.is_elem:
                pitch = self.pitches.get(tensor.name) or self.problem.pitch
                found[tensor.name] = side_by_side(tensor, self.problem, pitch)
                found[tensor.name].array[...] = self._turned(buffers[tensor.name].array)
        return found

    def gather(self, launched: Mapping[str, Buffer], buffers: Mapping[str, Buffer]) -> None:
        """What a launch left. Bytes written around the lines show as one in front of the reference's first row."""
        cols, beside = self.problem.cols, self.problem.col_stride
        for name, buffer in buffers.items():
            if launched[name] is buffer:
                continue
            lines = launched[name].array
            whole = np.ascontiguousarray(lines).reshape(len(lines), cols, beside)
            buffer.array[...] = whole.swapaxes(1, 2).reshape(buffer.array.shape)
            buffer.storage[0] = 0 if not launched[name].untouched() else buffer.storage[0]

    def _turned(self, rows: Stored) -> Stored:
        beside = self.problem.col_stride
        parts = np.ascontiguousarray(rows).reshape(-1, beside, self.problem.cols)
        return np.asarray(parts.swapaxes(1, 2).reshape(-1, self.problem.cols * beside))

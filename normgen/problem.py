"""A problem: one spec in one direction at one size, with the stored dtype of every tensor."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from normgen.dtypes import DType
from normgen.errors import UsageError
from normgen.spec import Kind, Spec


class Direction(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"

    @property
    def short(self) -> str:
        return {"forward": "fwd", "backward": "bwd"}[self.value]


@dataclass(frozen=True, kw_only=True)
class TensorUse:
    """One tensor of a problem, as the kernel's caller passes it."""

    name: str
    kind: Kind
    dtype: DType
    is_written: bool
    nullable: bool = False  # a written row statistic the caller may pass as null


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a kernel is generated for.

    tensors   every tensor of the launch in ABI order: outputs, then inputs
    pitch     distance between row starts of every elem tensor, in elements; >= cols
    align     bytes every base pointer is a multiple of
    any_cols  cols is a run-time argument of the kernel (the general fallback), not a constant
    accumulate  the written gradients are added to, not overwritten
    """

    spec: Spec
    direction: Direction = Direction.FORWARD
    rows: int
    cols: int
    tensors: tuple[TensorUse, ...]
    pitch: int
    align: int = 16
    any_cols: bool = False
    accumulate: bool = False

    def tensor(self, name: str) -> TensorUse:
        return next(t for t in self.tensors if t.name == name)

    @property
    def present(self) -> frozenset[str]:
        return frozenset(t.name for t in self.tensors)

    @property
    def elem_tensors(self) -> tuple[TensorUse, ...]:
        return tuple(t for t in self.tensors if t.kind is Kind.ELEM)

    @property
    def dtype(self) -> DType:
        """The stored dtype of the first row input: the one the problem is named after."""
        return next(t.dtype for t in self.elem_tensors if not t.is_written)

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that must move: every elem, row and col tensor once."""
        count = {Kind.ELEM: self.rows * self.cols, Kind.ROW: self.rows, Kind.COL: self.cols, Kind.SCALAR: 1}
        return sum(count[t.kind] * t.dtype.bytes for t in self.tensors)

    @property
    def name(self) -> str:
        """For example layernorm_fwd_f32."""
        return f"{self.spec.name}_{self.direction.short}_{self.dtype.name}"

    def row_alignment(self, tensor: TensorUse) -> int:
        """The largest power of two (≤ 32 bytes) that divides the address of every row start."""
        return math.gcd(self.align, self.pitch * tensor.dtype.bytes, 32)

    def __str__(self) -> str:
        return f"{self.spec.name} {self.direction.value} {self.rows} x {self.cols} {self.dtype.name}"


_SHAPE = re.compile(r"\d+(x\d+)*")


def parse_shape(text: str) -> tuple[int, int]:
    """`8x1024x768` -> rows = 8192, cols = 768: leading dimensions fold into rows."""
    if not _SHAPE.fullmatch(text):
        raise UsageError(
            "a shape is whole numbers joined by 'x', the last one being cols",
            received=text,
            hint="for example 8x1024x768",
        )
    return fold_shape(tuple(int(part) for part in text.split("x")))


def fold_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """[.., cols] -> (rows, cols); every dimension but the last folds into rows."""
    if not shape or shape[-1] < 1 or any(n < 0 for n in shape):
        raise UsageError("a shape needs cols >= 1 and no negative size", received=str(shape))
    rows, cols = math.prod(shape[:-1]), shape[-1]
    if rows > 2**31 - 1 or cols > 2**31 - 1:
        raise UsageError("rows and cols must each fit 31 bits", received=f"{rows} x {cols}")
    return rows, cols

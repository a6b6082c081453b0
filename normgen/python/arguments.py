"""Does an array fit a tensor of the problem? Checked before anything is launched."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from normgen.codegen.module import Module, Source
from normgen.cuda.arrays import ON_CPU, ArrayView
from normgen.cuda.dlpack import contiguous_strides
from normgen.dtypes import F32, I32, DType
from normgen.errors import UsageError
from normgen.problem.problem import Problem
from normgen.problem.scales import TILE_BYTES, TILE_ROWS, ScaleLayout
from normgen.problem.tensors import TensorUse
from normgen.schedule.plan import tensor_alignment
from normgen.schedule.schedule import Schedule
from normgen.spec.spec import Kind


@dataclass(frozen=True, kw_only=True)
class Placed:
    """One array as the kernel sees it.

    rows    how many rows it has; None for a tensor [cols], and for one of batches or of heads, and of tiles of rows
    batches  how many batches, or heads, a tensor of those has; None for another one
    pitch   distance of row starts in elements (1 for tensors [rows] and [cols])
    misfit  why the kernel, right for its problem, does not cover this layout; empty if it does
    """

    rows: int | None
    pitch: int
    misfit: str = ""
    batches: int | None = None
    lines: int | None = None  # of tiles of rows: how many rows of tiles it has


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The bytes of an array: `rows` runs of `width` bytes, `pitch` bytes from start to start."""

    rows: int
    pitch: int
    width: int

    @property
    def bytes(self) -> int:
        """From the first byte to behind the last."""
        return (self.rows - 1) * self.pitch + self.width if self.rows else 0

    def meets(self, other: Reach, apart: int) -> bool:
        """Whether the two share a byte, `other` starting `apart` bytes behind this one.

        Rows of one pitch may lie side by side; of two pitches, one array must end before the other begins.
        """
        if not (self.bytes and other.bytes) or apart >= self.bytes or -apart >= other.bytes:
            return False
        pitches = {reach.pitch for reach in (self, other) if reach.rows > 1}
        if len(pitches) != 1:
            return True
        (pitch,) = pitches
        return apart % pitch < self.width or -apart % pitch < other.width


@dataclass(frozen=True, kw_only=True)
class TensorNeeds:
    """What the kernel needs of one tensor.

    width        elements of a row: columns, or groups of them, or inner; 1 where a row has one value
    lines        how many of these a matrix, or that of each batch, has whatever the rows are; 0 of another tensor
    beside       rows that lie side by side: the sizes behind the axis of the columns, multiplied
    alignment    bytes every row start is a multiple of
    fixed_pitch  the only pitch the text knows, if the kernel takes none as an argument
    """

    tensor: TensorUse
    width: int
    pitch: int
    alignment: int
    fixed_pitch: int | None
    lines: int = 0
    beside: int = 1

    def reach(self, placed: Placed) -> Reach:
        """The bytes of an array that fits."""
        size, kind = self.tensor.dtype.bytes, self.tensor.kind
        if kind.is_groups:
            lines, width = self.tensor.layout.shape(placed.rows or 0, self.width)
            return Reach(rows=lines if placed.rows else 0, pitch=placed.pitch * size, width=width * size)
        if kind.is_matrix:
            rows = placed.batches if kind.by_batch else self.lines or placed.rows
            rows = (rows or 0) * (self.lines if kind.by_batch and self.lines else 1)
            return Reach(
                rows=(rows or 0) // self.beside, pitch=placed.pitch * size, width=self.width * self.beside * size
            )
        width = self.width * size
        width *= (placed.rows or 0) if kind.by_row else (placed.batches or 0) if kind.by_batch else 1
        return Reach(rows=1 if width else 0, pitch=width, width=width)

    def place(self, view: ArrayView, *, device: int) -> Placed:
        """Check one array. Raises UsageError with what was expected and what came."""
        self._check_kind(view, device)
        if self.tensor.kind.by_batch and not self.tensor.kind.within_row:
            self._check_contiguous(view)
            return Placed(rows=None, pitch=1, batches=math.prod(view.shape))
        if self.tensor.kind.by_batch:
            if self.lines and view.shape[-2:] != (self.lines, self.width):
                expected = f"[.., {', '.join(self.tensor.axes[1:])}] = (.., {self.lines}, {self.width})"
                raise self._wrong("shape", expected, str(view.shape))
            found = self._place_elem(view)
            return replace(found, rows=None, batches=(found.rows or 0) // (self.lines or 1))
        if self.tensor.layout is ScaleLayout.SWIZZLED:
            return self._place_tiles(view)
        if self.tensor.layout is not ScaleLayout.ROW_MAJOR:
            return self._place_columns(view)
        if self.lines:
            if view.shape != (self.lines, self.width):
                expected = f"[{', '.join(self.tensor.axes)}] = ({self.lines}, {self.width})"
                raise self._wrong("shape", expected, str(view.shape))
            return replace(self._place_elem(view), rows=None)
        if self.tensor.kind.is_matrix:
            return self._place_apart(view) if self.beside > 1 else self._place_elem(view)
        if self.tensor.kind.by_row:
            rows = math.prod(view.shape)
            self._check_contiguous(view)
            return Placed(rows=rows, pitch=1, misfit=self._misaligned(view.pointer if rows else 0, 0))
        if self.tensor.kind is Kind.SCALAR:
            if math.prod(view.shape) != 1:
                raise self._wrong("shape", "one number", str(view.shape))
            return Placed(rows=None, pitch=1, misfit=self._misaligned(view.pointer, 0))
        if view.shape != (self.width,):
            raise self._wrong("shape", f"[{self._columns}] = ({self.width},)", str(view.shape))
        self._check_contiguous(view)
        return Placed(rows=None, pitch=1, misfit=self._misaligned(view.pointer, 0))

    def _check_kind(self, view: ArrayView, device: int) -> None:
        if view.device != device:
            hint = "move it to the kernel's device first"
            raise self._wrong("device", device_name(device), device_name(view.device), hint=hint)
        dtype = array_dtype(self.tensor)
        if view.dtype not in (dtype.name, *([self.tensor.dtype.name] if self.tensor.dtype.packed > 1 else [])):
            raise self._wrong("dtype", dtype.name, view.dtype, hint="convert it, or make a kernel for it")
        if not self.tensor.is_const and view.readonly:
            raise self._wrong("access", "a writable array", "a read-only one")
        if view.pointer % dtype.bytes:
            raise self._wrong(
                "address", f"a multiple of {dtype.bytes} bytes", f"{view.pointer:#x}", hint="copy it first"
            )

    def _place_elem(self, view: ArrayView) -> Placed:
        shape, strides = view.shape, view.strides
        if not shape or shape[-1] != self.width:
            raise self._wrong(
                "shape",
                f"[.., {self._columns}] with {self._columns} = {self.width}",
                str(shape),
                hint=f"rows are free at run time; make a kernel for other {self.tensor.axes[-1]}",
            )
        rows = math.prod(shape[:-1])
        if rows == 0:
            return Placed(rows=0, pitch=self.pitch)
        if self.width > 1 and strides[-1] != 1:
            raise self._wrong(
                "stride", "contiguous columns (last stride 1)", f"strides {strides}", hint="copy it first"
            )
        pitch = _row_pitch(shape[:-1], strides[:-1])
        if pitch is None:
            raise self._wrong(
                "stride", "rows at one distance", f"shape {shape}, strides {strides}", hint="copy it first"
            )
        if rows == 1:
            return Placed(rows=1, pitch=self.pitch, misfit=self._misaligned(view.pointer, 0))
        if pitch < self.width:
            raise self._wrong(
                "stride",
                f"rows at least {self._columns} = {self.width} elements apart",
                f"{pitch}",
                hint="copy it first",
            )
        if self.fixed_pitch is not None and pitch != self.fixed_pitch:
            misfit = f"{self.tensor.name} has pitch {pitch}, the kernel was made for {self.fixed_pitch}"
            return Placed(rows=rows, pitch=pitch, misfit=misfit)
        return Placed(rows=rows, pitch=pitch, misfit=self._misaligned(view.pointer, pitch))

    def _place_apart(self, view: ArrayView) -> Placed:
        """[.., cols, ..], with `beside` elements behind each of the axis of the columns, which lie side by side."""
        shape, strides = view.shape, view.strides
        axis = axis_of(shape, self.width, self.beside)
        if axis is None:
            expected = f"[.., cols, ..] with cols = {self.width} and {self.beside} elements behind that axis"
            raise self._wrong("shape", expected, str(shape))
        rows = math.prod(shape[:axis]) * self.beside
        if rows == 0:
            return Placed(rows=0, pitch=self.pitch)
        own = contiguous_strides(shape[axis:])
        if any(size > 1 and step != at for size, step, at in zip(shape[axis:], strides[axis:], own, strict=True)):
            expected = f"a contiguous array from axis {axis} on"
            raise self._wrong("stride", expected, f"strides {strides}", hint="copy it first")
        pitch = _row_pitch(shape[:axis], strides[:axis])
        if pitch is None or 0 < pitch < self.width * self.beside:
            expected = f"one distance of at least {self.width * self.beside} elements in front of axis {axis}"
            raise self._wrong("stride", expected, f"shape {shape}, strides {strides}", hint="copy it first")
        if not pitch:
            return Placed(rows=rows, pitch=self.pitch, misfit=self._misaligned(view.pointer, 0))
        return Placed(rows=rows, pitch=pitch, misfit=self._misaligned(view.pointer, pitch))

    def _place_columns(self, view: ArrayView) -> Placed:
        """[.., groups], or packed words [.., groups / 4], whose rows lie side by side and whose columns are lines."""
        shape, strides = view.shape, view.strides
        lines, width = self.tensor.layout.shape(1, self.width)
        what = "words, of four groups each" if self.tensor.layout is ScaleLayout.PACKED else "groups"
        if not shape or shape[-1] != lines:
            raise self._wrong("shape", f"[.., {lines}], of {lines} {what}", str(shape))
        rows = math.prod(shape[:-1])
        if rows == 0:
            return Placed(rows=0, pitch=self.pitch)
        hint = f"take the transpose of an array [{lines}, {rows}]"
        if _row_pitch(shape[:-1], strides[:-1]) not in (0, 1):  # 0: of one row
            raise self._wrong("stride", "rows side by side (stride 1)", f"strides {strides}", hint=hint)
        if lines > 1 and strides[-1] < rows:
            raise self._wrong("stride", f"columns at least rows = {rows} apart", f"strides {strides}", hint=hint)
        return Placed(rows=rows, pitch=(strides[-1] if lines > 1 else rows) * width)

    def _place_tiles(self, view: ArrayView) -> Placed:
        """All bytes of whole tiles, [rows of tiles, ..], one behind the other, whatever sizes the array gives them."""
        _, width = self.tensor.layout.shape(1, self.width)
        lines, rest = divmod(math.prod(view.shape), width)
        if rest:
            raise self._wrong("shape", f"a multiple of {width} bytes, those of {TILE_ROWS} rows", str(view.shape))
        self._check_contiguous(view)
        return Placed(rows=None, pitch=width, lines=lines)

    def of_rows(self, placed: Placed, rows: int) -> Placed:
        """What was placed, of so many rows. Raises UsageError where its tiles are those of fewer or more."""
        if placed.lines is None:
            return placed
        lines, width = self.tensor.layout.shape(rows, self.width)
        if lines != placed.lines:
            expected = f"{lines * width} bytes, of {lines} x {width // TILE_BYTES} tiles"
            raise self._wrong("shape", expected, f"{placed.lines * width} bytes for {rows} rows")
        return replace(placed, rows=rows)

    @property
    def _columns(self) -> str:
        """What a row of it counts."""
        if self.tensor.dtype.packed > 1:
            return f"{self.tensor.axes[-1]} / {self.tensor.dtype.packed}"
        return f"cols / {self.tensor.group}" if self.tensor.group else self.tensor.axes[-1]

    def _misaligned(self, pointer: int, pitch: int) -> str:
        if (pointer | pitch * self.tensor.dtype.bytes) % self.alignment == 0:
            return ""
        return f"rows of {self.tensor.name} do not start at multiples of {self.alignment} bytes"

    def _check_contiguous(self, view: ArrayView) -> None:
        """Of what has no element there is nothing to be contiguous."""
        if 0 in view.shape:
            return
        step = 1
        for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
            if size > 1 and stride != step:
                raise self._wrong("stride", "a contiguous array", f"strides {view.strides}", hint="copy it first")
            step *= size

    def _wrong(self, what: str, expected: str, received: str, hint: str | None = None) -> UsageError:
        name = self.tensor.name
        return UsageError(f"wrong {what} of '{name}': expected {expected}", received=received, hint=hint)


def axis_of(shape: tuple[int, ...], cols: int, beside: int) -> int | None:
    """The axis of `cols` elements behind which there are `beside`; None where there is none."""
    axes = (i for i, size in enumerate(shape) if size == cols and math.prod(shape[i + 1 :]) == beside)
    return next(axes, None)


def is_truth(value: object) -> bool:
    """Whether it is True or False, of Python or of an array library, and no number."""
    return isinstance(value, bool | np.bool_) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def scalar_of(name: str, value: object, *, is_whole: bool = False, is_label: bool = False) -> float:
    """The number of a scalar argument.

    is_whole  it is compared with whole numbers: float32 must not make another one of it
    is_label  and it is one of them, or equal to none

    Raises UsageError for what is no number, for one that float32 makes infinite, and for a label that is no whole one.
    """
    rule = f"the scalar '{name}' is a number that float32 holds"
    if value is None or isinstance(value, str | bytes):
        raise UsageError(rule, received=repr(value))
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise UsageError(rule, received=f"{type(value).__name__}: {error}") from error
    if math.isfinite(number) and abs(number) > F32.largest:
        raise UsageError(rule, received=f"{number:g}")
    if is_label and (is_truth(value) or not number.is_integer()):
        hint = "-100, or another one that no label has, leaves none out"
        raise UsageError(
            f"the scalar '{name}' is a whole number: labels are held to it", received=repr(value), hint=hint
        )
    if is_whole and number.is_integer() and float(np.float32(number)) != (value if isinstance(value, int) else number):
        hint = f"float32 holds every whole number up to {1 << 24}"
        rule = f"the scalar '{name}' is compared with whole numbers, and is one that float32 holds exactly"
        raise UsageError(rule, received=str(value), hint=hint)
    return number


def array_dtype(tensor: TensorUse) -> DType:
    """The dtype of the caller's array, which has one number in an element: of packed scales words, of codes that share
    a byte bytes.
    """
    return I32 if tensor.layout is ScaleLayout.PACKED else tensor.dtype.of_array


def new_columns(tensor: TensorUse, groups: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides, in elements, of an array for values of groups whose rows, [*sizes], are not its lines.

    Of tiles of rows [rows, groups] of whole tiles, as tensor cores' libraries ask for.
    """
    rows = math.prod(sizes)
    if tensor.layout is ScaleLayout.SWIZZLED:
        lines, width = tensor.layout.shape(rows, groups)
        whole = (lines * TILE_ROWS, width // TILE_ROWS)
        return whole, contiguous_strides(whole)
    lines, width = tensor.layout.shape(1, groups)
    pitch = tensor.layout.pitch(rows, groups, tensor.dtype.bytes) // width
    return (*sizes, lines), (*contiguous_strides(sizes), pitch)


def device_name(device: int) -> str:
    """How messages name the device of a view or of a handle."""
    return "the CPU" if device == ON_CPU else f"GPU {device}"


def expectations(problem: Problem, schedule: Schedule, module: Module) -> dict[str, TensorNeeds]:
    """What a kernel needs of each of its tensors, by name."""
    with_pitch = {p.key for kernel in module.kernels for p in kernel.params if p.source is Source.PITCH}
    return {
        tensor.name: TensorNeeds(
            tensor=tensor,
            width=tensor.width(problem.sizes),
            pitch=problem.pitch_of(tensor),
            alignment=tensor_alignment(problem, schedule, tensor),
            fixed_pitch=None if tensor.name in with_pitch else problem.pitch_of(tensor),
            lines=problem.shape_of(tensor)[-2] if tensor.kind.by_inner and tensor.kind.by_col else 0,
            beside=problem.col_stride if tensor.kind.is_elem else 1,
        )
        for tensor in problem.passed_tensors
    }


def rows_per_batch(problem: Problem, views: Mapping[str, ArrayView], placed: Mapping[str, Placed], rows: int) -> int:
    """How many rows share a row of each tensor [batches, cols], or [heads, cols]; 1 where there is none.

    Raises UsageError unless all of them have as many batches, of equally many rows, and these are the first sizes of
    every array of rows that has more than two: batches of 4 in [4, 10, cols], not batches of 5. Heads are the last
    sizes before the columns.
    """
    counts = {name: place.batches for name, place in placed.items() if place.batches is not None}
    what, where = ("heads", "last") if problem.spec.has_heads else ("batches", "first")
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {batches}" for name, batches in counts.items())
        raise UsageError(f"all tensors must have the same number of {what}", received=listed)
    if not rows:
        return 1  # of batches of none
    name, batches = next(iter(counts.items()), ("", 1))
    if batches < 1 or rows % batches:
        raise UsageError(f"the {what} have equally many rows", received=f"{rows} rows, {batches} {what} of '{name}'")
    for other in (other for other, place in placed.items() if place.rows is not None):
        sizes = views[other].shape[: -1 if problem.tensor(other).kind.within_row else None]
        sizes = sizes[::-1] if problem.spec.has_heads else sizes
        if len(sizes) > 1 and batches not in itertools.accumulate(sizes, operator.mul, initial=1):
            received = f"{batches} {what} of '{name}', '{other}' of shape {views[other].shape}"
            raise UsageError(f"the {what} are the {where} sizes of an array of rows", received=received)
    return rows // batches


def misfit(problem: Problem, schedule: Schedule, views: Mapping[str, ArrayView], placed: Mapping[str, Placed]) -> str:
    """Why the kernel does not cover these layouts together; empty if it does.

    A peeled head is as long in one tensor as in all others: with edges = peel, every tensor's rows must
    start at the same element of a vector.
    """
    alone = next((place.misfit for place in placed.values() if place.misfit), "")
    if alone or not schedule.peels:
        return alone
    starts = {}
    for tensor in problem.elem_tensors:
        place, facts = placed.get(tensor.name), views.get(tensor.name)
        if place is not None and facts is not None and place.rows:
            step = place.pitch % schedule.vector if place.rows > 1 else 0
            starts[tensor.name] = (facts.pointer // tensor.dtype.bytes % schedule.vector, step)
    if len(set(starts.values())) > 1:
        return f"rows of {' and '.join(starts)} start at different elements of a vector of {schedule.vector}"
    return ""


def _row_pitch(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """The one distance between consecutive rows, leading dimensions folded; 0 for one row, None if there is none."""
    pitch, span = 0, 0
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if not pitch:
            pitch, span = stride, stride * size
        elif stride == span:
            span *= size
        else:
            return None
        if pitch <= 0:
            return None
    return pitch

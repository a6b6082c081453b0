"""Adversarial inputs: rows of x cycle through families that break careless kernels.

normal       standard normal
large_mean   mean 10^4 times the standard deviation (or 1 / (8 u) of a coarser dtype): breaks E[x²] - mean²
some_mean    mean 2, 8 or 32 times the standard deviation: an error that may hide in a larger mean shows
guarded_mean  mean 6.5 or 11 times the standard deviation: what a guard spares that is too weak
near_level   50 with noise of a quarter unit roundoff: as stored, one element in a hundred is a step off
sparse_steps 1000, one element in a hundred the next number of the dtype: mean/std is 2500 in bf16
fine_noise   mean/std = 1 / (8 u) with u of the dtype: noise of a few steps between its numbers
step_noise   mean/std = 1 / u: noise of about one step
large_steps  2^20, or 2^14 of f16; one element in 256 the next number of the dtype: mean/std is about 8 / u
constant     one value per row: variance 0, and every addition of a chain rounds the same way
large_constant  the same, up to 2^20, or 2^14 of f16
one_outlier  standard normal, one element 10^3
outlier_first  the same in column 0, ±10^3, where `shifted` takes its pivot: see below
tiny         around the smallest normal number of the dtype
huge         as large as Σ (2x)² of a row allows in float32, and the dtype in itself
zeros        all 0
mixed_sign   ±c alternating, 1 % noise: sums cancel
inf          standard normal, one +inf or -inf; every third row, from the second on, has nothing but -inf
nan          standard normal, one NaN
tail         0 but for the last column: breaks masked tails
stretch      0 but for 20 to 24 in a sixteenth of the columns, by turns, the last one first: what a kernel does to a
             part of the row alone shows, in exponentials too, as a sum of all columns has a wider bound
ties         what lies in the middle between two e4m3 (by turns whole numbers), once divided by a power of two that is
             the scale of each 32 columns: half a step either way, the even number is right
masked       standard normal, some columns the lowest finite number of the dtype; every second row has nothing else

Of guarded kernels alone (`program.rewrites.reductions`):

one_small    64, one element 2^-2 to 2^-13: the sum of few bits, else exact in bf16, is rounded

Of outputs of elements that share a byte alone:

ties_of_4    what lies in the middle between two f4e2m1, times a power of two of each 16 columns, of which one is 6 or
             7; groups of zeros
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import F32, DType
from normgen.errors import UsageError, did_you_mean
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse
from normgen.spec.spec import ROW_FAMILIES, Role
from normgen.verify.contraction.sides import (
    OF_MAXIMUM,
    WHOLE,
    draw_whole,
    drawn_side,
    in_batches,
    line_count,
    main_input,
    runs_of_rows,
    summed,
    with_extremes,
)
from normgen.verify.interpret import Array, drawn, interpret, seeds_of
from normgen.verify.reference import has_reference, reference
from normgen.verify.varied.values import (
    HALF,
    as_large,
    beside,
    draw_extreme,
    in_columns,
    middles,
    of_tensor,
    sign_of_call,
)

Stored = NDArray[Any]
Draw = Callable[[np.random.Generator, int, int, DType], Array]
POISON = 0xA5  # what the bytes between and around the rows hold
NAN_BYTE = 0xFF  # of which a number of any float format is NaN
GUARD_BYTES = 256
SPARSE_BYTES = 1 << 30  # of a buffer that is not filled: its rows are 2^31 elements apart


def _normal(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    return rng.standard_normal((rows, cols))


def _large_mean(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    mean = min(1e4, 1 / (8 * dtype.unit_roundoff)) * rng.choice([-1.0, 1.0], (rows, 1))
    return rng.standard_normal((rows, cols)) + mean


def _some_mean(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    mean = 2.0 * 4.0 ** (np.arange(rows)[:, None] % 3) * rng.choice([-1.0, 1.0], (rows, 1))
    return np.asarray(rng.standard_normal((rows, cols)) + mean)


def _guarded_mean(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    """About 8.2: the mean, its square and a sum of squares are just above powers of two, and rounded by most."""
    deviation = 8.2 / np.where(np.arange(rows)[:, None] % 2, 11.0, 6.5)
    return np.asarray((8.2 + deviation * rng.standard_normal((rows, cols))) * rng.choice([-1.0, 1.0], (rows, 1)))


def _near_level(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    return 50.0 * (1 + dtype.unit_roundoff / 4 * rng.standard_normal((rows, cols)))


def _sparse_steps(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    is_off = rng.random((rows, cols)) < 0.01
    is_off[np.arange(rows), rng.integers(0, cols, rows)] = True
    step = 2.0**9 * 2 * dtype.unit_roundoff  # the spacing of the dtype's numbers from 512 to 1024
    return np.where(is_off, 1000.0 + step, 1000.0)


def _level(times: float) -> Draw:
    """Noise about a level `times` / u of its size: what is stored is a few steps, or about one, off the level."""

    def draw(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
        level = times / dtype.unit_roundoff * rng.uniform(1.0, 2.0, (rows, 1)) * rng.choice([-1.0, 1.0], (rows, 1))
        return np.asarray(level * (1 + dtype.unit_roundoff / times * rng.standard_normal((rows, cols))))

    return draw


def _large(dtype: DType) -> float:
    """Of rows that are nearly constant: the error of a larger mean, squared and divided by eps, has no bound."""
    return float(min(2.0**20, 2.0 ** math.floor(math.log2(dtype.largest / 2))))


def _large_steps(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    is_off = rng.random((rows, cols)) < 1 / 256
    is_off[np.arange(rows), rng.integers(0, cols, rows)] = True
    level = _large(dtype)
    return np.where(is_off, level * (1 + 2 * dtype.unit_roundoff), level)


def _large_constant(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    size = rng.uniform(0.5, 1.0, (rows, 1)) * _large(dtype)
    return np.repeat(size * rng.choice([-1.0, 1.0], (rows, 1)), cols, axis=1)


def _constant(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    return np.repeat(rng.uniform(0.5, 4.0, (rows, 1)) * rng.choice([-1.0, 1.0], (rows, 1)), cols, axis=1)


def _one_outlier(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    x = rng.standard_normal((rows, cols))
    x[np.arange(rows), rng.integers(min(1, cols - 1), cols, rows)] = 1e3
    return x


def _one_small(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    x = np.full((rows, cols), 64.0)
    x[np.arange(rows), rng.integers(0, cols, rows)] = rng.uniform(0.5, 1.0, rows) * 2.0 ** rng.uniform(-12, -2, rows)
    return x


def _outlier_first(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    x = rng.standard_normal((rows, cols))
    x[:, 0] = np.where(np.arange(rows) % 2, -1e3, 1e3)
    return x


def _tiny(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    signs = rng.choice([-1.0, 1.0], (rows, cols))
    return np.asarray(rng.uniform(0.5, 4.0, (rows, cols)) * signs * dtype.smallest_normal)


def _huge(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    top = min(dtype.largest, math.sqrt(F32.largest / cols) / 4) / 2
    return np.asarray(rng.uniform(0.25, 1.0, (rows, cols)) * rng.choice([-1.0, 1.0], (rows, cols)) * top)


def _zeros(_rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    return np.zeros((rows, cols))


def _mixed_sign(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    signs = np.where(np.arange(cols) % 2, -1.0, 1.0)
    return signs * rng.uniform(0.5, 4.0, (rows, 1)) * (1 + 0.01 * rng.standard_normal((rows, cols)))


def _inf(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    x = rng.standard_normal((rows, cols))
    x[np.arange(rows), rng.integers(0, cols, rows)] = np.resize([np.inf, -np.inf, -np.inf], rows)
    x[1::3] = -np.inf
    return x


def _nan(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    x = rng.standard_normal((rows, cols))
    x[np.arange(rows), rng.integers(0, cols, rows)] = np.nan
    return x


def _tail(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    x = np.zeros((rows, cols))
    x[:, -1] = rng.uniform(4.0, 16.0, rows)
    return x


def _stretch(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    parts = min(cols, 16)
    of_column, of_row = np.arange(cols) * parts // cols, (np.arange(rows)[:, None] - 1) % parts
    return np.where(of_column == of_row, rng.uniform(20.0, 24.0, (rows, cols)), 0.0)


def _ties(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    """By turns a scale of 1 and 2^-14, which is below a largest magnitude that is given."""
    of_whole = np.arange(rows)[:, None] % 2 == 1
    middles = rng.choice(np.arange(17.0, 32.0, 2.0), (rows, cols)) * 2.0 ** rng.integers(-6, 4, (rows, cols))
    x = np.where(of_whole, rng.integers(0, 127, (rows, cols)) + 0.5, middles) * rng.choice([-1.0, 1.0], (rows, cols))
    x[:, min(1, cols - 1) :: 32] = np.where(of_whole, 127.0, 448.0)  # beside the columns that a pivot is taken from
    return np.asarray(x * np.where(np.arange(rows)[:, None] // 2 % 2 == 1, 2.0**-14, 1.0))


def _ties_of_4(rng: np.random.Generator, rows: int, cols: int, _: DType) -> Array:
    """Neighbouring groups, of 16 columns and of 32, have other scales, so that the scale of another one shows."""
    half = np.arange(cols) // 16
    group = half // 2
    x = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], (rows, cols)) * rng.choice([-1.0, 1.0], (rows, cols))
    x[:, min(1, cols - 1) :: 16] = np.where(group % 2 == 0, 7.0, 6.0)[min(1, cols - 1) :: 16]
    power = 2.0 ** (rng.integers(-2, 3, (rows, 1)) + group % 3 - half % 2)
    return np.asarray(np.where(group % 5 == 3, 0.0, x * power))


def _masked(rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    x = rng.standard_normal((rows, cols))
    hidden = rng.random((rows, cols)) < rng.uniform(0.2, 0.9, (rows, 1))
    hidden[1::2] = True
    return np.where(hidden, -dtype.largest, x)


DRAWS: dict[str, Draw] = {
    "normal": _normal,
    "large_mean": _large_mean,
    "some_mean": _some_mean,
    "guarded_mean": _guarded_mean,
    "near_level": _near_level,
    "sparse_steps": _sparse_steps,
    "fine_noise": _level(1 / 8),
    "step_noise": _level(1.0),
    "large_steps": _large_steps,
    "constant": _constant,
    "large_constant": _large_constant,
    "one_outlier": _one_outlier,
    "outlier_first": _outlier_first,
    "tiny": _tiny,
    "huge": _huge,
    "zeros": _zeros,
    "mixed_sign": _mixed_sign,
    "inf": _inf,
    "nan": _nan,
    "tail": _tail,
    "stretch": _stretch,
    "ties": _ties,
    "masked": _masked,
}
ALL: tuple[str, ...] = ROW_FAMILIES
DRAWS |= {WHOLE: draw_whole} | OF_MAXIMUM  # of a left side of products alone
ONE_SMALL = "one_small"
DRAWS[ONE_SMALL] = _one_small
TIES_OF_4 = "ties_of_4"
DRAWS[TIES_OF_4] = _ties_of_4
NON_FINITE = ("inf", "nan")
_POWER = "up_to_2^"
FAMILY_ROWS = 2 * len(ALL)  # two of every family


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """One tensor in its own allocation: `array` is a view of `storage` (bytes) that starts `offset` bytes in."""

    array: Stored
    storage: NDArray[np.uint8]
    offset: int
    is_sparse: bool = False  # too large to fill and to look through: its rows lie far apart in empty pages

    def untouched(self) -> bool:
        """Whether every byte of the allocation that is no element still holds what it was filled with.

        A sparse one is for an executor that checks each access.
        """
        if self.is_sparse:
            return True
        rows, cols = math.prod(self.array.shape[:-1]), self.array.shape[-1]
        width = cols * self.array.itemsize
        step = self.array.strides[-2] if self.array.ndim > 1 else width
        end = self.offset + rows * step
        gaps = self.storage[self.offset : end].reshape(rows, step)[:, width:]
        return all(bool(np.all(part == POISON)) for part in (self.storage[: self.offset], gaps, self.storage[end:]))


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The read tensors of a problem, with what is known about their rows."""

    problem: Problem
    seed: int
    families: tuple[str, ...]  # the family of each row
    left_out: tuple[str, ...] = ()  # families that a sum over rows could not hold, or its contract leaves out
    scalars: dict[str, float]  # as float32 holds them
    signed: tuple[str, ...] = ()  # parameters that are of both signs, 0 and 1
    numbers: NDArray[np.intp] | None = None  # of the rows in the launch, where these are some of its rows
    buffers: dict[str, Buffer]

    @property
    def arrays(self) -> dict[str, Stored]:
        return {name: buffer.array for name, buffer in self.buffers.items()}

    @cached_property
    def coded_families(self) -> tuple[list[str], NDArray[np.intp]]:
        """The names of the families, sorted, and the number of each row's: kept, as every check asks for them."""
        names = sorted(set(self.families))
        return names, np.searchsorted(names, self.families) if names else np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The written tensors of a problem, each by the name of its memory.

    start  what accumulated gradients held before the run
    """

    buffers: dict[str, Buffer]
    start: dict[str, Stored] = field(default_factory=dict)

    @property
    def arrays(self) -> dict[str, Stored]:
        return {name: buffer.array for name, buffer in self.buffers.items()}

    def overrun(self) -> tuple[str, ...]:
        """Tensors whose bytes outside the elements (between cols and pitch, before, behind) were written."""
        return tuple(name for name, buffer in self.buffers.items() if not buffer.untouched())


def allocate(tensor: TensorUse, problem: Problem, pitch: int | None = None, *, is_sparse: bool = False) -> Buffer:
    """Memory for one tensor with its own pitch or the problem's, its base an odd multiple of `align` bytes.

    Shapes: elem [rows, cols] and batches [batches, cols] with row stride pitch, groups as they are laid out,
    row [rows], col [cols], scalar [1]. A sparse one is never filled, whatever its size.
    Raises MemoryError when there is no address space for it.
    """
    shape = problem.shape_of(tensor) or (1,)
    if problem.col_stride > 1 and len(shape) > 1:  # as the reference reads it; `side_by_side` lays it out
        pitch = problem.cols
    return _allocated(shape, tensor, problem, pitch or problem.pitch_of(tensor), is_sparse=is_sparse)


def side_by_side(tensor: TensorUse, problem: Problem, pitch: int) -> Buffer:
    """Memory for a tensor whose rows lie side by side: [rows / col_stride, cols * col_stride], lines a pitch apart."""
    shape = (problem.rows // problem.col_stride, problem.cols * problem.col_stride)
    return _allocated(shape, tensor, problem, pitch)


def _allocated(
    shape: tuple[int, ...], tensor: TensorUse, problem: Problem, pitch: int, *, is_sparse: bool = False
) -> Buffer:
    item = tensor.dtype.bytes
    strides = (pitch * item, item) if len(shape) > 1 else (item,)
    strides = (shape[-2] * strides[0], *strides) if len(shape) > 2 else strides
    extent = shape[0] * strides[0]
    align = max(problem.align, item)
    size = GUARD_BYTES + 2 * align + extent + GUARD_BYTES
    is_sparse = is_sparse or size > SPARSE_BYTES
    storage = _empty_pages(size) if is_sparse else np.full(size, POISON, dtype=np.uint8)
    offset = GUARD_BYTES + (align - storage.ctypes.data - GUARD_BYTES) % (2 * align)
    array = np.ndarray(shape, tensor.dtype.of_array.numpy, storage.data, offset=offset, strides=strides)
    return Buffer(array=array, storage=storage, offset=offset, is_sparse=is_sparse)


def _empty_pages(size: int) -> NDArray[np.uint8]:
    """Address space whose pages cost memory only once they are written. Raises MemoryError."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        return np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=np.uint8)
    except OSError as error:
        raise MemoryError(f"no address space of {size} bytes") from error


def of_rows(array: Stored, tensor: TensorUse, problem: Problem, rows: NDArray[np.intp]) -> Stored:
    """What a tensor's array has for rows of these numbers: its own rows, those of their batches, or all that it is.

    The value of a group of columns, of a tensor that is read, stands once for each of them.
    """
    array = np.repeat(array, tensor.group, axis=-1) if tensor.kind.is_spread else array
    if tensor.kind.by_batch:
        return array[problem.batch_of(rows)]
    return array[rows] if tensor.kind.by_row else array


def _fill(tensor: TensorUse, problem: Problem, values: Array, pitch: int | None = None) -> Buffer:
    buffer = allocate(tensor, problem, pitch)
    if problem.inner and not buffer.is_sparse:
        buffer.storage[...] = NAN_BYTE  # beyond every edge of a side, where a kernel that adds it shows
    with np.errstate(all="ignore"):
        buffer.array[...] = tensor.dtype.stored(values)
    return buffer


def draw_inputs(
    problem: Problem,
    chosen: tuple[str, ...],
    *,
    seed: int = 0,
    pitches: Mapping[str, int] | None = None,
    scalars: Mapping[str, float] | None = None,
    ends: str = "",
    signed: Collection[str] = (),
    sizes: Mapping[str, float] | None = None,
    numbers: NDArray[np.intp] | None = None,
    is_tied: bool = False,
) -> Inputs:
    """Every read tensor of the problem, in its stored dtype, pitch and alignment.

    The rows of the spec's first input cycle through the `chosen` families, in an order that the seed picks; in one of
    another input (`varied.values.extremes`) the first one's are normal. Other
    elem inputs and dy are standard normal, parameters 1 + 0.2 N and, named bias or with `absent` = 0, 0.2 N,
    of the `signed` ones some columns negated, 0 or 1; whole
    numbers of 8 bits are any, others the number of a column or -1. In a
    backward problem saved statistics and saved outputs come from the float64 forward, rounded to their dtype.
    `pitches` are those of tensors that do not have the problem's, `scalars` the values of those not at their default,
    `ends` the family of the first and the last row, `sizes` those of parameters that are about as large, `numbers`
    those that the rows have in a launch of more. `is_tied`: factors are 0, what is added is the middle between two
    numbers of 8 bits, times 1/2, and numbers on the device are 1/2 or -1/2.

    Raises UsageError for an unknown family of rows.
    """
    pitches = pitches or {}
    for name in chosen:
        if not of_tensor(name):
            _draw_of(name)
    rng = np.random.default_rng([seed, problem.rows, problem.cols])
    order = [chosen[i] for i in rng.permutation(len(chosen))]
    of_row = tuple(order[i % len(order)] for i in range(line_count(problem)))
    if ends and of_row:
        of_row = (ends,) if len(of_row) == 1 else (ends, *of_row[1:-1], ends)
    given = {**dict(problem.spec.scalars), **(scalars or {})}
    values_of = {name: float(np.float32(value)) for name, value in given.items()}
    pen = Pen(
        problem=problem,
        of_row=of_row,
        scalars=values_of,
        rng=rng,
        signed=signed,
        sizes=sizes or {},
        numbers=numbers,
        is_tied=is_tied,
    )
    made: dict[str, Buffer] = {}
    saved: list[TensorUse] = []
    for tensor in problem.tensors:
        if tensor.is_written:
            continue
        if _is_computed(tensor, problem):
            saved.append(tensor)
        else:
            made[tensor.name] = _fill(tensor, problem, pen.draw(tensor), pitches.get(tensor.name))
    if saved:
        values = _forward_values(pen, made)
        made |= {t.name: _fill(t, problem, values[t.name], pitches.get(t.name)) for t in saved}
    in_order = {t.name: made[t.name] for t in problem.tensors if not t.is_written}
    return Inputs(
        problem=problem,
        seed=seed,
        families=of_row,
        scalars=values_of,
        signed=tuple(signed),
        numbers=numbers,
        buffers=in_order,
    )


def _is_computed(tensor: TensorUse, problem: Problem) -> bool:
    written = {t.name for t in problem.spec.tensors if t.role.is_written}
    return problem.direction is Direction.BACKWARD and tensor.name in written


@dataclass(frozen=True, kw_only=True)
class Pen:
    """Draws the tensors of a problem whose rows are of these families, one after the other."""

    problem: Problem
    of_row: tuple[str, ...]
    scalars: Mapping[str, float] = field(default_factory=dict)
    rng: np.random.Generator
    signed: Collection[str] = ()  # parameters that are of both signs, 0 and 1
    sizes: Mapping[str, float] = field(default_factory=dict)  # of parameters that are of one
    numbers: NDArray[np.intp] | None = None  # of the rows in the launch
    is_tied: bool = False  # parameters leave what lies in the middle between numbers of 8 bits

    def draw(self, tensor: TensorUse) -> Array:
        problem, rng = self.problem, self.rng
        if tensor.name in {t.name for t in problem.spec.seeds}:
            return rng.integers(-(2**63), 2**63, 1).astype(np.float64)
        is_drawn = tensor.kind.is_elem and not (tensor.dtype.is_integer or summed(problem))
        if tensor.name == main_input(problem) and is_drawn:
            found = draw_rows(self.of_row, problem.cols, tensor.dtype, rng)
        else:
            found = self.ordinary(tensor)
        lines = found if tensor.axes[:1] == tensor.kind.axes[:1] else found.T
        for family in dict.fromkeys(f for f in self.of_row if of_tensor(f) == tensor.name):
            at = np.flatnonzero(np.array(self.of_row) == family)
            drawn = draw_extreme(family, tensor, problem, at.size, self.scalars, rng)
            lines[at] = drawn if lines.ndim > 1 else drawn[:, 0]
        return found

    def ordinary(self, tensor: TensorUse) -> Array:
        """The tensor where it is at no extreme; of a parameter both signs, zeros and ones."""
        problem, rng = self.problem, self.rng
        if (side := drawn_side(tensor, problem, self.of_row, rng, draw_rows)) is not None:
            return side
        shape = problem.shape_of(tensor)
        if tensor.name in self.sizes:
            return as_large(self.sizes[tensor.name], shape or (1,), tensor.dtype, rng)
        if tensor.dtype.is_integer:
            low, high = (
                (tensor.dtype.least, tensor.dtype.largest) if tensor.dtype.bytes == 1 else (-1, problem.cols - 1)
            )
            return rng.integers(int(low), int(high), shape, endpoint=True).astype(np.float64)
        if tensor.kind.within_row and not tensor.kind.by_row:
            declared = next((t for t in problem.spec.tensors if t.name == tensor.name), None)
            centre = 0.0 if tensor.name == "bias" or (declared is not None and declared.absent in ("0", "0.0")) else 1.0
            if self.is_tied:
                return middles(shape, rng) if centre == 0 else np.zeros(shape)
            values = centre + 0.2 * rng.standard_normal(shape)
            if tensor.name not in self.signed:
                return values
            values = in_columns(values, rng)
            return with_extremes(values, tensor, problem, rng) if summed(problem) else values
        if not shape and self.is_tied:
            return np.full(1, sign_of_call(problem) * HALF)
        if not shape and tensor.name in self.signed:
            return sign_of_call(problem) * np.abs(rng.standard_normal(1))
        return rng.standard_normal(shape or (1,))


def draw_rows(of_row: tuple[str, ...], cols: int, dtype: DType, rng: np.random.Generator) -> Array:
    """One row of each named family: [len(of_row), cols], float64 and not yet rounded to dtype.

    In a family of another input they are normal, or 0 (`beside`).
    """
    x = np.empty((len(of_row), cols))
    names = np.array([beside(name) for name in of_row])
    for name in dict.fromkeys(names.tolist()):
        at = np.flatnonzero(names == name)
        x[at] = _draw_of(name)(rng, at.size, cols, dtype)
    return x


def as_large_as(exponent: int) -> str:
    """The name of a family of rows of elements of this power of two: for `families.finite_to` alone."""
    return f"{_POWER}{exponent}"


def _draw_of(family: str) -> Draw:
    """Raises UsageError for an unknown family of rows."""
    if family in DRAWS:
        return DRAWS[family]
    if not family.startswith(_POWER):
        raise UsageError("unknown row family", received=family, hint=did_you_mean(family, DRAWS))
    largest = 2.0 ** int(family.removeprefix(_POWER))
    over = 1 + 2.0**-10  # all are as large: the sums of such a row are the largest
    signs = (-largest, largest)
    return lambda rng, rows, cols, _: rng.uniform(1.0, over, (rows, cols)) * rng.choice(signs, (rows, cols))


def _forward_values(pen: Pen, made: dict[str, Buffer]) -> dict[str, Array]:
    """Saved statistics and outputs of the forward, from inputs that the backward may not itself read."""
    problem, scalars = pen.problem, pen.scalars
    spec, dtype = problem.spec, problem.dtype
    if not problem.rows_per_batch:  # a tensor of batches that only the forward reads: one for each row
        problem = replace(problem, rows_per_batch=1)
    pen = replace(pen, problem=problem)
    rows = np.arange(problem.rows)
    known = rows if pen.numbers is None else pen.numbers
    inputs: dict[str, Any] = {}
    for tensor in (t for t in spec.tensors if not t.role.is_written):
        use = TensorUse(
            name=tensor.name,
            kind=tensor.kind,
            dtype=dtype,
            is_written=False,
            group=tensor.group,
            order=tensor.axes,
        )
        if tensor.role is Role.SEED:  # of which no bit may be lost
            drawn_seed = pen.rng.integers(-(2**63), 2**63, 1)
            inputs[tensor.name] = made[tensor.name].array if tensor.name in made else drawn_seed
            continue
        if tensor.name in made:
            value = made[tensor.name].array.astype(np.float64)
        elif tensor.name not in problem.absent:
            with np.errstate(all="ignore"):
                value = dtype.stored(pen.draw(use)).astype(np.float64)
        else:
            continue
        if problem.inner:
            is_turned = tensor.name in made and tensor.name in dict(problem.layout)
            inputs[tensor.name] = value.T if is_turned else value.reshape(problem.shape_of(use))
            continue
        shape = tensor.kind.broadcast_shape(problem.sizes)
        inputs[tensor.name] = of_rows(value, use, problem, rows).reshape(shape)
    if has_reference(spec, Direction.FORWARD):
        numbers = drawn(spec, seeds_of(spec, inputs), known, problem.cols)
        return reference(spec.name, Direction.FORWARD, {**inputs, **numbers}, scalars)
    if not in_batches(problem):
        return interpret(spec, inputs, scalars, rows=known)
    first = {t.name: (t.axes or t.kind.axes)[:1] for t in spec.tensors}
    found: list[dict[str, Array]] = []
    for batch, run in enumerate(runs_of_rows(problem)):  # each has a product of its own
        parts: dict[tuple[str, ...], slice] = {("rows",): run, ("batches",): slice(batch, batch + 1)}
        own = {name: value[parts[first[name]]] if first[name] in parts else value for name, value in inputs.items()}
        found.append(interpret(spec, own, scalars, rows=known[run]))
    written = ((t.name, 1 if t.kind.is_row else 2) for t in (*spec.outputs, *spec.statistics))
    nothing = {name: np.empty((0, problem.cols)[:axes]) for name, axes in written}
    return {name: np.concatenate([none, *(of[name] for of in found)]) for name, none in nothing.items()}


def draws(inputs: Inputs, number: int) -> Array:
    """[rows, cols]: what random(seed) gives, of the call of this number in the formulas."""
    problem, rows = inputs.problem, np.arange(inputs.problem.rows)
    return drawn(problem.spec, seeds_of(problem.spec, inputs.arrays), rows, problem.cols)[f"random {number}"]


def make_outputs(
    problem: Problem,
    *,
    seed: int = 0,
    pitches: Mapping[str, int] | None = None,
    nulls: Collection[str] = (),
    inputs: Inputs | None = None,
) -> Outputs:
    """Every written tensor but `nulls`, filled with its dtype's poison, or with random numbers to accumulate to.

    What is written in place starts as a copy of the tensor that it takes the place of, under that one's name: a call
    gets `{**inputs.arrays, **outputs.arrays}`, and the inputs stay as they were. `inputs` are needed for that only.
    `pitches` are those of tensors that do not have the problem's.
    """
    rng = np.random.default_rng([seed, 1])
    buffers: dict[str, Buffer] = {}
    start: dict[str, Stored] = {}
    for tensor in problem.tensors:
        if not tensor.is_written or tensor.name in nulls:
            continue
        buffer = allocate(tensor, problem, (pitches or {}).get(tensor.memory))
        buffer.array[...] = tensor.dtype.in_units(np.full(tensor.dtype.packed, tensor.dtype.poison, tensor.dtype.numpy))
        if tensor.over:
            assert inputs is not None, "a copy of the inputs is overwritten"
            buffer.array[...] = inputs.arrays[tensor.over]
        if problem.accumulate:
            buffer.array[...] = rng.standard_normal(buffer.array.shape).astype(tensor.dtype.numpy)
            start[tensor.name] = buffer.array.copy()
        buffers[tensor.memory] = buffer
    return Outputs(buffers=buffers, start=start)

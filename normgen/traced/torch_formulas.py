"""Any problem's program in torch, in float32 as our kernels compute it: for torch.compile, which makes kernels of it.

Run eagerly it is one kernel an operation: for tensors that none of our kernels takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from normgen.dtypes import F32, DType
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.ir import Random
from normgen.program.source import written_program
from normgen.spec.functions import CALLS, Rounding
from normgen.spec.spec import Kind
from normgen.traced import four_bits, philox
from normgen.traced.tape import Replay, batches_of, lengths, replayed
from normgen.verify.contraction.product import AXIS, WITH_INNER, as_it_lies, leading, product, summed_axis

Tensor = Any
Tensors = Mapping[str, Tensor]

# Of whole numbers torch's have the default dtype, whatever that is.
_OF_REALS = {name for name, f in CALLS.items() if f.torch and f.rounding is Rounding.ROUNDS}
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, f.torch) for name, f in CALLS.items() if f.torch},
    "constant": lambda x: x.detach().clone(),
    "clamp": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    "where": lambda condition, a, b: torch.where(condition != 0, a, b),
    "and": lambda a, b: (a != 0) & (b != 0),
    "or": lambda a, b: (a != 0) | (b != 0),
    "not": lambda a: a == 0,
}


@dataclass(frozen=True, kw_only=True)
class TorchArithmetic:
    """On rows of `cols` elements: elem [rows, cols], row [rows, 1], col [1, cols], scalar [].

    batches   that have a matrix of their own
    dtype     float32, as in a kernel; float64, where it stands for float32 throughout
    is_exact  nothing is rounded, by a cast or where it is stored, but to whole numbers
    """

    cols: Any  # a number, or a compiler's name for one
    device: Any
    batches: Any = 1
    dtype: Any = torch.float32
    is_exact: bool = False

    def constant(self, value: float) -> Tensor:
        return torch.full((), value, dtype=self.dtype, device=self.device)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def subtract(self, a: Tensor, b: Tensor) -> Tensor:
        return a - b

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        return self.real(a) / self.real(b)

    def negate(self, a: Tensor) -> Tensor:
        return -a

    def power(self, base: Tensor, exponent: float) -> Tensor:
        return self.real(base) ** exponent

    def real(self, a: Tensor) -> Tensor:
        return a if a.is_floating_point() else a.to(self.dtype)

    def call(self, name: str, *args: Tensor) -> Tensor:
        if name == "divide":
            return self.divide(*args)
        found = _FUNCTIONS[name](*(map(self.real, args) if name in _OF_REALS else args))
        return found.to(self.dtype) if found.dtype == torch.bool else found

    def named(self, a: Tensor) -> Tensor:
        return a

    def cast(self, a: Tensor, dtype: DType) -> Tensor:
        if dtype.packed > 1:
            every = [*four_bits.NUMBERS, *(-x for x in four_bits.NUMBERS)]
            numbers = torch.tensor(every, dtype=self.dtype, device=a.device)
            return numbers[four_bits.codes(a, torch.where, torch.signbit(a))]
        return self.stored(a, dtype).to(self.dtype)

    def in_any_order(self, above: list[Tensor], below: list[Tensor], found: Tensor) -> Tensor:  # noqa: ARG002
        return found

    def reduce(self, name: str, arg: Tensor, group: int = 0) -> Tensor:
        """Over the row; over groups of its columns, each of which then has its group's value."""
        arg = self.real(arg) if name == "mean" else arg
        if arg.ndim == WITH_INNER:
            return _reduced(name, arg.movedim(0, -1)).squeeze(-1)
        row = arg.expand(*arg.shape[:-1], self.cols) if arg.ndim else arg.expand(1, self.cols)
        if group:
            groups = row.unflatten(-1, (self.cols // group, group))
            return _reduced(name, groups).expand(groups.shape).reshape(row.shape)
        return _reduced(name, row)

    def roll(self, arg: Tensor, share: Fraction, by: int) -> Tensor:
        """Along the row; a value of the whole row, and a number, is the same everywhere."""
        columns = self.cols * share.numerator // share.denominator + by
        return torch.roll(arg, columns, -1) if arg.ndim else arg

    def sum_rows(self, arg: Tensor, row: Tensor | None = None) -> Tensor:
        """Over all rows; `row` has their numbers, [rows, 1]: a value of no row is summed as often."""
        every = arg
        if row is not None and arg.ndim < WITH_INNER:
            every = arg.expand(row.shape[0], arg.shape[-1] if arg.ndim else 1)
        return every.sum(AXIS[Kind.ROW], keepdim=True)

    def dot(self, a: Tensor, b: Tensor, over: Kind | None = None) -> Tensor:
        """Σ a b over an axis, in float32 whatever the caller lets other products be rounded to."""
        with _in_ieee(a):
            return product(a, b, over or summed_axis(a, b), self.batches)

    def stored(self, value: Tensor, dtype: DType) -> Tensor:
        """As a kernel of ours stores it: rounded as the dtype rounds, saturated where it does, two codes a byte."""
        if dtype.packed > 1:
            return four_bits.two_a_byte(four_bits.codes(value, torch.where, torch.signbit(value))).to(torch.uint8)
        if dtype is F32 or (self.is_exact and not dtype.is_integer):
            return value.to(self.dtype, copy=True)
        if dtype.rounds_up:
            mantissa, exponent = value.clamp(dtype.least, dtype.largest).frexp()
            power = torch.ldexp(torch.ones_like(value), exponent - (mantissa == 0.5).int())
            value = torch.where(value >= 0, power, torch.nan)
        elif dtype.saturates:  # torch's own cast to e4m3 gives NaN beyond the largest number
            value = value.round() if dtype.is_integer else value
            value = value.nan_to_num(nan=0.0) if dtype.is_integer else value
            value = value.clamp(dtype.least, dtype.largest)
        return value.to(getattr(torch, dtype.torch))


@contextmanager
def _in_ieee(a: Tensor) -> Iterator[None]:
    """No TF32 in products on a GPU. What torch.compile traces is as its caller sets it."""
    if not a.is_cuda or torch.compiler.is_compiling():
        yield
        return
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "ieee"
    try:
        yield
    finally:
        settings.fp32_precision = before


def _reduced(name: str, x: Tensor) -> Tensor:
    if name in ("sum", "mean"):
        return getattr(x, name)(-1, keepdim=True)
    if name in ("argmax", "argmin"):
        return getattr(x, name)(-1, keepdim=True).to(x.dtype)
    return x.amin(-1, keepdim=True) if name == "min" else (x.abs() if name == "absmax" else x).amax(-1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class TorchFunction:
    """A program as a function of the tensors that it reads, by name, which a compiler can trace.

    An elem tensor is [.., cols], and all of them have one shape; row tensors are [..].
    """

    reads: tuple[TensorUse, ...]
    writes: tuple[TensorUse, ...]
    scalars: tuple[tuple[str, float], ...]
    randoms: tuple[Random, ...]
    replay: Replay
    is_exact: bool = False

    @property
    def numbers_rows(self) -> bool:
        """Whether what a row becomes depends on which of the rows it is."""
        return bool(self.randoms) or "row" in self.replay.used

    def __call__(
        self, tensors: Tensors, scalars: Mapping[str, float] | None = None, rows_per_batch: int = 0
    ) -> Tensors:
        """The written tensors, none of which shares memory with a read one.

        scalars         other values than the spec's
        rows_per_batch  0: the batches have equally many rows
        """
        first = next(tensors[t.name] for t in self.reads if t.is_row_input)
        cols, inner = lengths(self.reads, tensors, first)
        shape = (*first.shape[:-1], cols)
        rows = first.numel() // first.shape[-1]
        is_double = any(tensors[t.name].dtype == torch.float64 for t in self.reads)
        dtype = torch.float64 if is_double else torch.float32
        batches = batches_of(self.reads, tensors, (cols, inner))
        own = batches if any(t.kind.is_batch_matrix for t in self.reads) else 1
        do = TorchArithmetic(cols=cols, device=first.device, batches=own, dtype=dtype, is_exact=self.is_exact)
        given = {t.name: _read(t, tensors[t.name], do, rows, rows_per_batch) for t in self.reads}
        given |= {name: do.constant(value) for name, value in {**dict(self.scalars), **(scalars or {})}.items()}
        given["cols"] = do.constant(torch.sym_float(cols))
        if "inner" in self.replay.names:
            given["inner"] = do.constant(torch.sym_float(inner))
        for random in self.randoms:
            drawn = uniform(tensors[random.seed], rows, cols, random.draw)
            given[f"random {random.draw}"] = drawn.to(do.dtype)
        if "row" in self.replay.used:
            given["row"] = torch.arange(rows, dtype=torch.int64, device=first.device).unsqueeze(1)
        if "col" in self.replay.used:
            given["col"] = torch.arange(cols, dtype=torch.int64, device=first.device).unsqueeze(0)
        if "term" in self.replay.used:
            given["term"] = torch.arange(inner, dtype=torch.int64, device=first.device).reshape(-1, 1, 1)
        values = self.replay(do, given)
        each = rows_per_batch or (rows // batches if batches else rows)
        return {t.name: self._written(t, values[t.name], do, (*shape, inner), (each, batches)) for t in self.writes}

    def _written(
        self, use: TensorUse, value: Tensor, do: TorchArithmetic, shape: Any, shares: tuple[int, int]
    ) -> Tensor:
        *shape, inner = shape
        rows, (each, batches) = math.prod(shape[:-1]), shares
        if use.kind.by_inner:
            lines = rows if use.kind.by_row else batches if use.kind.by_batch else 1
            value = value.expand(inner, lines, do.cols if use.kind.by_col else 1)
            value = as_it_lies(value, use.axes)
            value = value.reshape(*shape[:-1], inner) if use.kind.by_row else value
        elif use.kind.by_batch:  # what each row adds; the last batch may be shorter
            value = value.expand(rows, do.cols)
            if use.kind.by_head:
                value = value.reshape(each, batches, do.cols).sum(0)
            else:
                value = torch.nn.functional.pad(value, (0, 0, 0, batches * each - rows))
                value = value.reshape(batches, each, do.cols).sum(1)
        elif use.kind.is_groups:  # each column has its group's value
            value = value.expand(rows, do.cols)[:, :: use.group].reshape(*shape[:-1], do.cols // use.group)
        elif use.kind.is_elem:
            value = value.expand(rows, do.cols).reshape(shape)
        elif use.kind.by_row:
            value = value.expand(rows, 1).reshape(shape[:-1])
        else:
            value = value.expand(1, do.cols).reshape(-1) if use.kind.within_row else value.reshape(())
        if use.kind.is_spread:
            value = value.unflatten(-1, (do.cols // use.group, use.group)).sum(-1)
        return do.stored(value, use.dtype).contiguous()


def torch_function(problem: Problem, *, is_exact: bool = False) -> TorchFunction:
    """The problem's program in torch, for any number of rows and, of a spec without groups, of cols.

    is_exact  of float64 tensors nothing is rounded, but to whole numbers
    """
    return TorchFunction(
        reads=tuple(t for t in problem.tensors if not t.is_written),
        writes=tuple(t for t in problem.tensors if t.is_written),
        scalars=problem.spec.scalars,
        randoms=written_program(problem).randoms,
        replay=replayed(problem),
        is_exact=is_exact,
    )


_LOW = 0xFFFFFFFF


def uniform(seed: Tensor, rows: Any, cols: Any, draw: int) -> Tensor:
    """The numbers of `random(seed)`, [rows, cols] in [0, 1): Philox4x32-10 (Salmon et al. 2011), in int64.

    A product of two words wraps around as 64 bits do; shifted right it must lose the sign that it then seems to have.
    """
    row = torch.arange(rows, dtype=torch.int64, device=seed.device).unsqueeze(1)
    quad = torch.arange((cols + 3) // 4, dtype=torch.int64, device=seed.device).unsqueeze(0)
    counter = (t + torch.zeros_like(row + quad) for t in (row & _LOW, row >> 32, quad, torch.full_like(quad, draw)))
    key = seed.reshape(()) & _LOW, (seed.reshape(()) >> 32) & _LOW
    found = torch.stack(philox.words(counter, key, _product, lambda word, by: (word + by) & _LOW), -1)
    return (found.flatten(1)[:, :cols] >> 8).float() * 2.0**-24


def _product(a: Tensor, by: int) -> tuple[Tensor, Tensor]:
    """The high and the low 32 bits of a product of two words."""
    both = a * by
    return (both >> 32) & _LOW, both & _LOW


def _read(use: TensorUse, tensor: Tensor, do: TorchArithmetic, rows: int, rows_per_batch: int) -> Tensor:
    """In the shape of its kind; whole numbers stay whole, so that labels are compared exactly."""
    value = tensor if use.dtype.is_integer else tensor.to(do.dtype)
    value = value.repeat_interleave(use.group, -1) if use.kind.is_spread else value
    if use.kind.by_inner:
        return leading(value.reshape(rows, value.shape[-1]) if use.kind.by_row else value, use.axes)
    if use.kind.is_elem:
        return value.reshape(rows, do.cols)
    if use.kind.by_batch:
        width = do.cols if use.kind.within_row else 1
        value = value.reshape(-1, 1, width)
        each = rows_per_batch or (rows // value.shape[0] if value.shape[0] else 0)
        value = value.transpose(0, 1).expand(each, -1, -1) if use.kind.by_head else value.expand(-1, each, -1)
        return value.reshape(-1, width)[:rows]
    if use.kind is Kind.SCALAR:
        return value.reshape(())
    return value.reshape(rows, 1) if use.kind.by_row else value.reshape(1, do.cols)

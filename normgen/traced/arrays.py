"""What a program in torch and one in jax.numpy share: the arithmetic of arrays, and a call's tensors in its shapes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

from normgen.dtypes import DType
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.ir import Random
from normgen.program.source import written_program
from normgen.spec.spec import Kind
from normgen.traced import four_bits
from normgen.traced.tape import Replay, batches_of, lengths, replayed
from normgen.verify.contraction.product import AXIS, WITH_INNER, as_it_lies, leading, product, summed_axis

Array = Any


@dataclass(frozen=True, kw_only=True)
class ArrayArithmetic(ABC):
    """On rows of `cols` elements: elem [rows, cols], row [rows, 1], col [1, cols], scalar [].

    library  torch, or jax.numpy
    batches  that have a matrix of their own
    dtype    float32, as in a kernel; float64, where it stands for float32 throughout
    """

    library: ClassVar[Any]
    cols: Any  # a number, or a compiler's name for one
    batches: Any = 1
    dtype: Any

    @abstractmethod
    def constant(self, value: Any) -> Array: ...

    @abstractmethod
    def converted(self, a: Array, dtype: Any) -> Array:
        """In another of the library's dtypes."""

    @abstractmethod
    def reduced(self, name: str, a: Array) -> Array:
        """Over the last axis, which stays with one element."""

    @abstractmethod
    def in_float32(self, a: Array) -> AbstractContextManager[object]:
        """Inside it, products have the precision of float32."""

    @abstractmethod
    def stored(self, value: Array, dtype: DType) -> Array:
        """As a kernel of ours stores it: rounded as the dtype rounds, saturated where it does, two codes a byte."""

    @abstractmethod
    def numbers(self, count: Any) -> Array:
        """0, 1, .. count - 1."""

    @abstractmethod
    def uniform(self, seed: Array, rows: Any, draw: int) -> Array:
        """The numbers of `random(seed)`, [rows, cols] in [0, 1), in float32."""

    @abstractmethod
    def repeated(self, a: Array, times: int) -> Array:
        """Each element of the last axis so many times."""

    @abstractmethod
    def padded(self, a: Array, rows: Any) -> Array:
        """With so many rows of 0 behind those of [rows, cols]."""

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def subtract(self, a: Array, b: Array) -> Array:
        return a - b

    def multiply(self, a: Array, b: Array) -> Array:
        return a * b

    def negate(self, a: Array) -> Array:
        return -a

    def named(self, a: Array) -> Array:
        return a

    def real(self, a: Array) -> Array:
        """A value that is no whole number, where the library's functions must have one."""
        return a

    def in_any_order(self, above: list[Array], below: list[Array], found: Array) -> Array:  # noqa: ARG002
        return found

    def spread(self, a: Array, *sizes: Any) -> Array:
        return self.library.broadcast_to(a, sizes)

    def codes(self, a: Array) -> Array:
        """Those of f4e2m1, one for each value."""
        return four_bits.codes(a, self.library.where, self.library.signbit(a))

    def reduce(self, name: str, arg: Array, group: int = 0) -> Array:
        """Over the row; over groups of its columns, each of which then has its group's value."""
        arg = self.real(arg) if name == "mean" else arg
        if arg.ndim == WITH_INNER:
            return self.reduced(name, self.library.moveaxis(arg, 0, -1)).squeeze(-1)
        row = self.spread(arg, *arg.shape[:-1], self.cols) if arg.ndim else self.spread(arg, 1, self.cols)
        if group:
            groups = row.reshape(row.shape[0], self.cols // group, group)
            return self.spread(self.reduced(name, groups), *groups.shape).reshape(row.shape)
        return self.reduced(name, row)

    def roll(self, arg: Array, share: Fraction, by: int) -> Array:
        """Along the row; a value of the whole row, and a number, is the same everywhere."""
        columns = self.cols * share.numerator // share.denominator + by
        return self.library.roll(arg, columns, -1) if arg.ndim else arg

    def sum_rows(self, arg: Array, row: Array | None = None) -> Array:
        """Over all rows; `row` has their numbers, [rows, 1]: a value of no row is summed as often."""
        every = arg
        if row is not None and arg.ndim < WITH_INNER:
            every = self.spread(arg, row.shape[0], arg.shape[-1] if arg.ndim else 1)
        return every.sum(AXIS[Kind.ROW], keepdims=True)

    def dot(self, a: Array, b: Array, over: Kind | None = None) -> Array:
        """Σ a b over an axis, in float32 whatever other products are rounded to."""
        with self.in_float32(a):
            return product(a, b, over or summed_axis(a, b), self.batches)

    # What a call is given, and what it returns

    def read(self, use: TensorUse, array: Array, rows: Any, rows_per_batch: int) -> Array:
        """In the shape of its kind; whole numbers stay whole, so that labels are compared exactly."""
        value = array if use.dtype.is_integer else self.converted(array, self.dtype)
        value = self.repeated(value, use.group) if use.kind.is_spread else value
        if use.kind.by_inner:
            return leading(value.reshape(rows, value.shape[-1]) if use.kind.by_row else value, use.axes)
        if use.kind.is_elem:
            return value.reshape(rows, self.cols)
        if use.kind.by_batch:
            width = self.cols if use.kind.within_row else 1
            value = value.reshape(-1, 1, width)
            batches = value.shape[0]
            each = rows_per_batch or (rows // batches if batches else 0)
            turned, sizes = (value.swapaxes(0, 1), (each, batches)) if use.kind.by_head else (value, (batches, each))
            return self.spread(turned, *sizes, width).reshape(-1, width)[:rows]
        if use.kind is Kind.SCALAR:
            return value.reshape(())
        return value.reshape(rows, 1) if use.kind.by_row else value.reshape(1, self.cols)

    def written(self, use: TensorUse, value: Array, sizes: Any, inner: Any, each: Any, batches: Any) -> Array:
        """In the shape that the caller sees; `sizes`: those of rows before the last; `each`: the rows of a batch."""
        rows, cols = math.prod(sizes), self.cols
        if use.kind.by_inner:
            lines = rows if use.kind.by_row else batches if use.kind.by_batch else 1
            value = as_it_lies(self.spread(value, inner, lines, cols if use.kind.by_col else 1), use.axes)
            value = value.reshape(*sizes, inner) if use.kind.by_row else value
        elif use.kind.by_head:  # what each row adds
            value = self.spread(value, rows, cols).reshape(each, batches, cols).sum(0)
        elif use.kind.by_batch:  # the last batch may be shorter
            value = self.padded(self.spread(value, rows, cols), batches * each - rows)
            value = value.reshape(batches, each, cols).sum(1)
        elif use.kind.is_groups:  # each column has its group's value
            value = self.spread(value, rows, cols)[:, :: use.group].reshape(*sizes, cols // use.group)
        elif use.kind.is_elem:
            value = self.spread(value, rows, cols).reshape(*sizes, cols)
        elif use.kind.by_row:
            value = self.spread(value, rows, 1).reshape(sizes)
        else:
            value = self.spread(value, 1, cols).reshape(-1) if use.kind.within_row else value.reshape(())
        if use.kind.is_spread:  # the sums of columns, added up
            value = value.reshape(*value.shape[:-1], cols // use.group, use.group).sum(-1)
        return self.stored(value, use.dtype)


@dataclass(frozen=True, kw_only=True)
class ArrayFunction:
    """A program as a function of the arrays that it reads, by name, which a compiler can trace.

    An elem array is [.., cols], and all of them have one shape; row arrays are [..], those of a left side [.., inner],
    and all others of inner have the shape that their axes say.
    """

    reads: tuple[TensorUse, ...]
    writes: tuple[TensorUse, ...]
    scalars: tuple[tuple[str, float], ...]
    randoms: tuple[Random, ...]
    replay: Replay
    arithmetic: ClassVar[type[ArrayArithmetic]]

    @classmethod
    def of(cls, problem: Problem, **options: Any) -> Self:
        """The problem's program, for any number of rows and, of a spec without groups, of cols."""
        return cls(
            reads=tuple(t for t in problem.tensors if not t.is_written),
            writes=tuple(t for t in problem.tensors if t.is_written),
            scalars=problem.spec.scalars,
            randoms=written_program(problem).randoms,
            replay=replayed(problem),
            **options,
        )

    @property
    def numbers_rows(self) -> bool:
        """Whether what a row becomes depends on which of the rows it is."""
        return bool(self.randoms) or "row" in self.replay.used

    def options(self, first: Array) -> dict[str, Any]:  # noqa: ARG002
        """What the library's arithmetic takes beside sizes and a dtype; `first`: an array of rows."""
        return {}

    def __call__(
        self, arrays: Mapping[str, Array], scalars: Mapping[str, float] | None = None, rows_per_batch: int = 0
    ) -> dict[str, Array]:
        """The written arrays, none of which shares memory with a read one.

        scalars         other values than the spec's
        rows_per_batch  0: the batches have equally many rows
        """
        first = next(arrays[t.name] for t in self.reads if t.is_row_input)
        cols, inner = lengths(self.reads, arrays, first)
        sizes, rows = first.shape[:-1], math.prod(first.shape) // first.shape[-1]
        batches = batches_of(self.reads, arrays, (cols, inner))
        own = batches if any(t.kind.is_batch_matrix for t in self.reads) else 1
        library = self.arithmetic.library
        is_double = any(arrays[t.name].dtype == library.float64 for t in self.reads)
        dtype = library.float64 if is_double else library.float32
        do: Any = self.arithmetic(cols=cols, batches=own, dtype=dtype, **self.options(first))
        seeds = {random.seed for random in self.randoms}
        given = {t.name: do.read(t, arrays[t.name], rows, rows_per_batch) for t in self.reads if t.name not in seeds}
        given |= {name: do.constant(value) for name, value in {**dict(self.scalars), **(scalars or {})}.items()}
        given |= {name: do.constant(n) for name, n in (("cols", cols), ("inner", inner)) if name in self.replay.names}
        for random in self.randoms:
            drawn = do.uniform(arrays[random.seed], rows, random.draw)
            given[f"random {random.draw}"] = do.converted(drawn, do.dtype)
        for name, count, shape in (("row", rows, (-1, 1)), ("col", cols, (1, -1)), ("term", inner, (-1, 1, 1))):
            if name in self.replay.used:
                given[name] = do.numbers(count).reshape(shape)
        values = self.replay(do, given)
        each = rows_per_batch or (rows // batches if batches else rows)
        return {t.name: do.written(t, values[t.name], sizes, inner, each, batches) for t in self.writes}

"""Any problem's program in jax.numpy, in float32 as our kernels compute it: for XLA, which makes kernels of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from normgen.dtypes import BF16, F32, DType
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.ir import Random
from normgen.program.source import written_program
from normgen.spec.functions import CALLS
from normgen.spec.spec import Kind
from normgen.traced import four_bits, philox
from normgen.traced.tape import Replay, batches_of, lengths, replayed
from normgen.verify.contraction.product import AXIS, WITH_INNER, as_it_lies, leading, product, summed_axis

Array = Any
Arrays = Mapping[str, Array]

_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{name: operator.attrgetter(f.jax)(jax) for name, f in CALLS.items() if f.jax},
    "divide": lambda a, b: _divided(a, b),
    "clamp": lambda x, low, high: jnp.minimum(jnp.maximum(x, low), high),
    "where": lambda condition, a, b: jnp.where(condition != 0, a, b),
    "and": lambda a, b: (a != 0) & (b != 0),
    "or": lambda a, b: (a != 0) | (b != 0),
    "not": lambda a: a == 0,
}


def _divided(a: Array, b: Array) -> Array:
    """Rounded correctly, as the function `divide` promises: XLA multiplies by the reciprocal of what is one number."""
    return a / lax.optimization_barrier(jnp.broadcast_to(b, jnp.broadcast_shapes(jnp.shape(a), jnp.shape(b))))


_ROOTS: dict[float, Callable[..., Array]] = {0.5: jnp.sqrt, -0.5: lax.rsqrt}
_REDUCTIONS: dict[str, Callable[..., Array]] = {"max": jnp.max, "min": jnp.min, "sum": jnp.sum, "mean": jnp.mean}


@dataclass(frozen=True, kw_only=True)
class JaxArithmetic:
    """On rows of `cols` elements: elem [rows, cols], row [rows, 1], col [1, cols], scalar [].

    batches  that have a matrix of their own
    dtype    float32, as in a kernel; float64, where it stands for float32 throughout
    """

    cols: int
    batches: int = 1
    dtype: Any = jnp.float32

    def constant(self, value: float) -> Array:
        return jnp.full((), value, self.dtype)

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def subtract(self, a: Array, b: Array) -> Array:
        return a - b

    def multiply(self, a: Array, b: Array) -> Array:
        return a * b

    def divide(self, a: Array, b: Array) -> Array:
        """By one number as IEEE says, which kernels do in every schedule."""
        return _divided(a, b) if jnp.ndim(b) == 0 else a / b

    def negate(self, a: Array) -> Array:
        return -a

    def power(self, base: Array, exponent: float) -> Array:
        """A whole exponent by products: a general power has no gradient at 0."""
        if exponent in _ROOTS:
            return _ROOTS[exponent](base)
        return lax.integer_pow(base, int(exponent)) if exponent == int(exponent) else base**exponent

    def call(self, name: str, *args: Array) -> Array:
        found = _FUNCTIONS[name](*args)
        return found.astype(self.dtype) if found.dtype == jnp.bool_ else found

    def named(self, a: Array) -> Array:
        return a

    def cast(self, a: Array, dtype: DType) -> Array:
        """Rounded where the author says: XLA may leave out a conversion to fewer bits and back, but none of these."""
        if dtype.packed > 1:
            numbers = jnp.array([*four_bits.NUMBERS, *(-x for x in four_bits.NUMBERS)], self.dtype)
            return numbers[four_bits.codes(a, jnp.where, jnp.signbit(a))]
        if dtype is BF16 and self.dtype == jnp.float32:
            return lax.reduce_precision(a, exponent_bits=8, mantissa_bits=7)
        found = self.stored(a, dtype)
        return found if found.dtype == self.dtype else lax.optimization_barrier(found).astype(self.dtype)

    def in_any_order(self, above: list[Array], below: list[Array], found: Array) -> Array:  # noqa: ARG002
        return found

    def reduce(self, name: str, arg: Array, group: int = 0) -> Array:
        """Over the row; over groups of its columns, each of which then has its group's value."""
        if arg.ndim == WITH_INNER:
            return _reduced(name, jnp.moveaxis(arg, 0, -1))[..., 0]
        row = jnp.broadcast_to(arg, (*arg.shape[:-1], self.cols) if arg.ndim else (1, self.cols))
        if group:
            groups = row.reshape(row.shape[0], self.cols // group, group)
            return jnp.broadcast_to(_reduced(name, groups), groups.shape).reshape(row.shape)
        return _reduced(name, row)

    def roll(self, arg: Array, share: Fraction, by: int) -> Array:
        """Along the row; a value of the whole row, and a number, is the same everywhere."""
        return jnp.roll(arg, int(self.cols * share) + by, -1) if arg.ndim else arg

    def sum_rows(self, arg: Array, row: Array | None = None) -> Array:
        """Over all rows; `row` has their numbers, [rows, 1]: a value of no row is summed as often."""
        every = arg
        if row is not None and arg.ndim < WITH_INNER:
            every = jnp.broadcast_to(arg, (row.shape[0], arg.shape[-1] if arg.ndim else 1))
        return every.sum(AXIS[Kind.ROW], keepdims=True)

    def dot(self, a: Array, b: Array, over: Kind | None = None) -> Array:
        """Σ a b over an axis, in float32 on every device: none takes it for fewer bits."""
        with jax.default_matmul_precision("highest"):
            return product(a, b, over or summed_axis(a, b), self.batches)

    def stored(self, value: Array, dtype: DType) -> Array:
        """As a kernel of ours stores it: rounded as the dtype rounds, saturated where it does, two codes a byte."""
        if dtype.packed > 1:
            return four_bits.two_a_byte(four_bits.codes(value, jnp.where, jnp.signbit(value))).astype(jnp.uint8)
        if dtype is F32:
            return value.astype(self.dtype)
        if dtype.rounds_up:
            return _power_of_two(value).view(dtype.numpy)
        if dtype.saturates:
            value = jnp.where(jnp.isnan(value), 0.0, jnp.round(value)) if dtype.is_integer else value
            value = jnp.clip(value, dtype.least, dtype.largest)
        return value.astype(dtype.numpy)


def _power_of_two(value: Array) -> Array:
    """The exponent that an f8e8m0 holds, 2^-127 at 0: from the bits, as XLA may take numbers below 2^-126 for 0."""
    bits = lax.bitcast_convert_type(value.astype(jnp.float32), jnp.uint32)
    above = (bits & 0x7FFFFF) > jnp.where(bits >> 23 == 0, 1 << 22, 0)
    return jnp.where(value >= 0, jnp.minimum((bits >> 23) + above, 254), 255).astype(jnp.uint8)


def _reduced(name: str, x: Array) -> Array:
    if name in ("argmax", "argmin"):
        return getattr(jnp, name)(x, -1, keepdims=True).astype(x.dtype)
    if name == "absmax":
        return jnp.abs(x).max(-1, keepdims=True)
    return _REDUCTIONS[name](x, -1, keepdims=True)


@dataclass(frozen=True, kw_only=True)
class JaxFunction:
    """A program as a function of the arrays that it reads, by name, for XLA to compile.

    An elem array is [.., cols], and all of them have one shape; row arrays are [..], those of a left side [.., inner],
    and all others of inner have the shape that their axes say. A seed is its 64 bits as two
    words, uint32 [2], the low one first.
    """

    reads: tuple[TensorUse, ...]
    writes: tuple[TensorUse, ...]
    scalars: tuple[tuple[str, float], ...]
    randoms: tuple[Random, ...]
    replay: Replay

    @property
    def numbers_rows(self) -> bool:
        """Whether a row's values depend on which of the rows it is."""
        return bool(self.randoms) or "row" in self.replay.used

    def __call__(self, arrays: Arrays, scalars: Mapping[str, float] | None = None) -> dict[str, Array]:
        """The written arrays; `scalars`: other values than the spec's. Batches have equally many rows."""
        first = next(arrays[t.name] for t in self.reads if t.is_row_input)
        cols, inner = lengths(self.reads, arrays, first)
        shape = (*first.shape[:-1], cols)
        rows = math.prod(shape[:-1])
        is_double = any(arrays[t.name].dtype == jnp.float64 for t in self.reads)
        batches = batches_of(self.reads, arrays, (cols, inner))
        own = batches if any(t.kind.is_batch_matrix for t in self.reads) else 1
        do = JaxArithmetic(cols=cols, batches=own, dtype=jnp.float64 if is_double else jnp.float32)
        seeds = {random.seed for random in self.randoms}
        given = {t.name: _read(t, arrays[t.name], do, rows) for t in self.reads if t.name not in seeds}
        given |= {name: do.constant(value) for name, value in {**dict(self.scalars), **(scalars or {})}.items()}
        given |= {"cols": do.constant(cols), "inner": do.constant(inner)}
        for random in self.randoms:
            given[f"random {random.draw}"] = uniform(arrays[random.seed], rows, cols, random.draw).astype(do.dtype)
        if "row" in self.replay.used:
            given["row"] = jnp.arange(rows)[:, None]
        if "col" in self.replay.used:
            given["col"] = jnp.arange(cols)[None, :]
        if "term" in self.replay.used:
            given["term"] = jnp.arange(inner)[:, None, None]
        values = self.replay(do, given)
        return {
            t.name: do.stored(_written(t, values[t.name], (shape, inner), rows, batches), t.dtype) for t in self.writes
        }


def jax_function(problem: Problem) -> JaxFunction:
    """The problem's program in jax.numpy, for any number of rows and, of a spec without groups, of cols."""
    return JaxFunction(
        reads=tuple(t for t in problem.tensors if not t.is_written),
        writes=tuple(t for t in problem.tensors if t.is_written),
        scalars=problem.spec.scalars,
        randoms=written_program(problem).randoms,
        replay=replayed(problem),
    )


def _read(use: TensorUse, array: Array, do: JaxArithmetic, rows: int) -> Array:
    """In the shape of its kind; whole numbers stay whole, so that labels are compared exactly."""
    value = array if use.dtype.is_integer else array.astype(do.dtype)
    value = jnp.repeat(value, use.group, -1) if use.kind.is_spread else value
    if use.kind.by_inner:
        return leading(value.reshape(rows, value.shape[-1]) if use.kind.by_row else value, use.axes)
    if use.kind.is_elem:
        return value.reshape(rows, do.cols)
    if use.kind.by_batch:
        value = value.reshape(-1, do.cols if use.kind.within_row else 1)
        each = rows // max(len(value), 1)
        return jnp.tile(value, (each, 1)) if use.kind.by_head else jnp.repeat(value, each, 0)
    if use.kind is Kind.SCALAR:
        return value.reshape(())
    return value.reshape(rows, 1) if use.kind.by_row else value.reshape(1, do.cols)


def _written(use: TensorUse, value: Array, whole: tuple[tuple[int, ...], int], rows: int, batches: int) -> Array:
    if use.kind.is_spread:  # the sums of columns, added up
        columns = replace(use, kind=use.kind.in_rows, group=0)
        value = _written(columns, value, whole, rows, batches)
        return value.reshape(*value.shape[:-1], value.shape[-1] // use.group, use.group).sum(-1)
    shape, inner = whole
    cols = shape[-1]
    if use.kind.by_inner:
        lines = rows if use.kind.by_row else batches if use.kind.by_batch else 1
        value = jnp.broadcast_to(value, (inner, lines, cols if use.kind.by_col else 1))
        value = as_it_lies(value, use.axes)
        return value.reshape(*shape[:-1], inner) if use.kind.by_row else value
    if use.kind.by_batch:  # what each row adds
        each = rows // max(batches, 1)
        sizes, axis = ((each, batches), 0) if use.kind.by_head else ((batches, each), 1)
        return jnp.broadcast_to(value, (rows, cols)).reshape(*sizes, cols).sum(axis)
    if use.kind.is_groups:  # each column has its group's value
        return jnp.broadcast_to(value, (rows, cols))[:, :: use.group].reshape(*shape[:-1], cols // use.group)
    if use.kind.is_elem:
        return jnp.broadcast_to(value, (rows, cols)).reshape(shape)
    if use.kind.by_row:
        return jnp.broadcast_to(value, (rows, 1)).reshape(shape[:-1])
    return jnp.broadcast_to(value, (1, cols)).reshape(cols) if use.kind.by_col else value.reshape(())


def uniform(seed: Array, rows: int, cols: int, draw: int) -> Array:
    """The numbers of `random(seed)`, [rows, cols] in [0, 1): Philox4x32-10 (Salmon et al. 2011), in uint32.

    XLA has no 64-bit numbers unless it is told to; rows are fewer than 2^32.
    """
    sizes = rows, -(-cols // 4)
    row, quad = (lax.broadcasted_iota(jnp.uint32, sizes, axis) for axis in (0, 1))
    counter = row, jnp.zeros(sizes, jnp.uint32), quad, jnp.full(sizes, draw, jnp.uint32)
    found = philox.words(counter, (seed[0], seed[1]), _product, lambda word, by: word + jnp.uint32(by))
    found = jnp.stack(found, -1).reshape(rows, 4 * sizes[1])[:, :cols]
    return (found >> 8).astype(jnp.float32) * 2.0**-24


def _product(a: Array, by: int) -> tuple[Array, Array]:
    """The high and the low 32 bits of a product of two words, by halves."""
    low, high = a & 0xFFFF, a >> 16
    by_low, by_high = jnp.uint32(by & 0xFFFF), jnp.uint32(by >> 16)
    middle = high * by_low + (low * by_low >> 16)
    carry = low * by_high + (middle & 0xFFFF)
    return high * by_high + (middle >> 16) + (carry >> 16), a * jnp.uint32(by)

"""Any problem's program in jax.numpy, in float32 as our kernels compute it: for XLA, which makes kernels of it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from normgen.dtypes import BF16, F32, TF32, DType
from normgen.problem.problem import Problem
from normgen.spec.functions import CALLS
from normgen.traced import four_bits, philox
from normgen.traced.arrays import ArrayArithmetic, ArrayFunction

Array = Any

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
class JaxArithmetic(ArrayArithmetic):
    """As `ArrayArithmetic`."""

    library: ClassVar[Any] = jnp

    def constant(self, value: Any) -> Array:
        return jnp.full((), value, self.dtype)

    def converted(self, a: Array, dtype: Any) -> Array:
        return a.astype(dtype)

    def divide(self, a: Array, b: Array) -> Array:
        """By one number as IEEE says, which kernels do in every schedule."""
        return _divided(a, b) if jnp.ndim(b) == 0 else a / b

    def power(self, base: Array, exponent: float) -> Array:
        """A whole exponent by products: a general power has no gradient at 0."""
        if exponent in _ROOTS:
            return _ROOTS[exponent](base)
        return lax.integer_pow(base, int(exponent)) if exponent == int(exponent) else base**exponent

    def call(self, name: str, *args: Array) -> Array:
        found = _FUNCTIONS[name](*args)
        return found.astype(self.dtype) if found.dtype == jnp.bool_ else found

    def cast(self, a: Array, dtype: DType) -> Array:
        """Rounded where the author says: XLA may leave out a conversion to fewer bits and back, but none of these."""
        if dtype.packed > 1:
            numbers = jnp.array([*four_bits.NUMBERS, *(-x for x in four_bits.NUMBERS)], self.dtype)
            return numbers[self.codes(a)]
        if dtype is BF16 and self.dtype == jnp.float32:
            return lax.reduce_precision(a, exponent_bits=8, mantissa_bits=7)
        if dtype is TF32:
            known = lax.stop_gradient(a)
            near = lax.reduce_precision(known, exponent_bits=8, mantissa_bits=10)
            return jnp.where(jnp.isfinite(near), a + (near - known), near)  # no rounding, and straight through it
        found = self.stored(a, dtype)
        return found if found.dtype == self.dtype else lax.optimization_barrier(found).astype(self.dtype)

    def reduced(self, name: str, a: Array) -> Array:
        if name in ("argmax", "argmin"):
            return getattr(jnp, name)(a, -1, keepdims=True).astype(a.dtype)
        return jnp.abs(a).max(-1, keepdims=True) if name == "absmax" else _REDUCTIONS[name](a, -1, keepdims=True)

    def in_float32(self, _: Array) -> Any:
        return jax.default_matmul_precision("highest")

    def numbers(self, count: int) -> Array:
        return jnp.arange(count)

    def uniform(self, seed: Array, rows: int, draw: int) -> Array:
        """A seed is its 64 bits as two words, uint32 [2], the low one first."""
        return uniform(seed, rows, self.cols, draw)

    def repeated(self, a: Array, times: int) -> Array:
        return jnp.repeat(a, times, -1)

    def padded(self, a: Array, rows: int) -> Array:
        return jnp.pad(a, ((0, rows), (0, 0)))

    def stored(self, value: Array, dtype: DType) -> Array:
        if dtype.packed > 1:
            return four_bits.two_a_byte(self.codes(value)).astype(jnp.uint8)
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


@dataclass(frozen=True, kw_only=True)
class JaxFunction(ArrayFunction):
    """As `ArrayFunction`, for XLA to compile."""

    arithmetic = JaxArithmetic


def jax_function(problem: Problem) -> JaxFunction:
    """The problem's program in jax.numpy, for any number of rows and, of a spec without groups, of cols."""
    return JaxFunction.of(problem)


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

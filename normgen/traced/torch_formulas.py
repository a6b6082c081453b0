"""Any problem's program in torch, in float32 as our kernels compute it: for torch.compile, which makes kernels of it.

Run eagerly it is one kernel an operation: for tensors that none of our kernels takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from normgen.dtypes import F32, DType
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.spec.functions import CALLS, Rounding
from normgen.traced import four_bits, philox
from normgen.traced.arrays import ArrayArithmetic, ArrayFunction

Tensor = Any

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
class TorchArithmetic(ArrayArithmetic):
    """As `ArrayArithmetic`. `is_exact`: nothing is rounded, by a cast or where it is stored, but to whole numbers."""

    library = torch
    device: Any
    is_exact: bool = False

    def constant(self, value: Any) -> Tensor:
        return torch.full((), torch.sym_float(value), dtype=self.dtype, device=self.device)

    def converted(self, a: Tensor, dtype: Any) -> Tensor:
        return a.to(dtype)

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        return self.real(a) / self.real(b)

    def power(self, base: Tensor, exponent: float) -> Tensor:
        return self.real(base) ** exponent

    def real(self, a: Tensor) -> Tensor:
        return a if a.is_floating_point() else a.to(self.dtype)

    def call(self, name: str, *args: Tensor) -> Tensor:
        if name == "divide":
            return self.divide(*args)
        found = _FUNCTIONS[name](*(map(self.real, args) if name in _OF_REALS else args))
        return found.to(self.dtype) if found.dtype == torch.bool else found

    def cast(self, a: Tensor, dtype: DType) -> Tensor:
        if dtype.packed > 1:
            every = [*four_bits.NUMBERS, *(-x for x in four_bits.NUMBERS)]
            numbers = torch.tensor(every, dtype=self.dtype, device=a.device)
            return numbers[self.codes(a)]
        if dtype.of_f32:
            near = self.stored(a.detach(), dtype).to(self.dtype)
            return torch.where(near.isfinite(), a + (near - a.detach()), near)  # no rounding, and straight through it
        return self.stored(a, dtype).to(self.dtype)

    def reduced(self, name: str, a: Tensor) -> Tensor:
        if name in ("sum", "mean"):
            return getattr(a, name)(-1, keepdim=True)
        if name in ("argmax", "argmin"):
            return getattr(a, name)(-1, keepdim=True).to(a.dtype)
        return (
            a.amin(-1, keepdim=True) if name == "min" else (a.abs() if name == "absmax" else a).amax(-1, keepdim=True)
        )

    @contextmanager
    def in_float32(self, a: Tensor) -> Iterator[None]:
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

    def numbers(self, count: Any) -> Tensor:
        return torch.arange(count, dtype=torch.int64, device=self.device)

    def uniform(self, seed: Tensor, rows: Any, draw: int) -> Tensor:
        return uniform(seed, rows, self.cols, draw)

    def repeated(self, a: Tensor, times: int) -> Tensor:
        return a.repeat_interleave(times, -1)

    def padded(self, a: Tensor, rows: Any) -> Tensor:
        return torch.nn.functional.pad(a, (0, 0, 0, rows))

    def written(self, use: TensorUse, value: Tensor, sizes: Any, inner: Any, each: Any, batches: Any) -> Tensor:
        return super().written(use, value, sizes, inner, each, batches).contiguous()

    def stored(self, value: Tensor, dtype: DType) -> Tensor:
        if dtype.packed > 1:
            return four_bits.two_a_byte(self.codes(value)).to(torch.uint8)
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
        elif dtype.of_f32:
            bits = value.to(torch.float32).view(torch.int32)
            near = (bits + 0xFFF + (bits >> 13 & 1) & ~0x1FFF).view(torch.float32)
            value = torch.where(value.isnan(), value, near)
        return value.to(getattr(torch, dtype.torch))


@dataclass(frozen=True, kw_only=True)
class TorchFunction(ArrayFunction):
    """As `ArrayFunction`, of tensors. `is_exact`: as in `TorchArithmetic`."""

    arithmetic = TorchArithmetic
    is_exact: bool = False

    def options(self, first: Tensor) -> dict[str, Any]:
        return {"device": first.device, "is_exact": self.is_exact}


def torch_function(problem: Problem, *, is_exact: bool = False) -> TorchFunction:
    """The problem's program in torch, for any number of rows and, of a spec without groups, of cols.

    is_exact  of float64 tensors nothing is rounded, but to whole numbers
    """
    return TorchFunction.of(problem, is_exact=is_exact)


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
